"""The words of speculative decoding that both voices use: rules, regimes, and the table that calibrates confidences.

Knows a file and its laws; fits nothing and applies nothing. Source: serving specification §1.6.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Literal, get_args

from reference.spec.errors import ConfigError, shown
from reference.spec.json_file import read_object

#: How drafts are judged. coupled: the text of decoding without drafts. ratio: exact in law alone.
Verification = Literal["coupled", "ratio"]

#: What a table was fitted under. greedy: temperature 0. stochastic: above it.
Regime = Literal["greedy", "stochastic"]

FORMAT = "counterpoint confidence table 1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfidenceTable:
    """Temperatures that turn raw confidence logits into probabilities: slot k's is σ(z / temperatures[k]).

    rule, regime: what the rows it was fitted to were verified with; acceptance differs between them.
    rows: how many blocks it was fitted to. error_before, error_after: expected calibration error of the survival
    probability of each slot, with all temperatures at 1 and with these.

    Raises:
        ConfigError: a field of another type, an unknown rule or regime, lists of different lengths, a temperature that
            is not finite and above 0.
    """

    rule: Verification
    regime: Regime
    temperatures: tuple[float, ...]
    rows: int = 0
    error_before: tuple[float, ...] = ()
    error_after: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.rule not in get_args(Verification):
            _refuse("rule", self.rule, f"must be one of {', '.join(get_args(Verification))}")
        if self.regime not in get_args(Regime):
            _refuse("regime", self.regime, f"must be one of {', '.join(get_args(Regime))}")
        if type(self.rows) is not int or self.rows < 0:
            _refuse("rows", self.rows, "must be an int not below 0")
        for name in ("temperatures", "error_before", "error_after"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        if not self.temperatures or min(self.temperatures) <= 0:
            _refuse("temperatures", self.temperatures, "must be numbers above 0, one a draft slot")
        for name in ("error_before", "error_after"):
            if getattr(self, name) and len(getattr(self, name)) != len(self.temperatures):
                _refuse(name, getattr(self, name), f"must have {len(self.temperatures)} numbers, or none")

    def to_file(self, path: str | Path) -> None:
        """Write it as JSON."""
        record = {"format": FORMAT, "nextn": len(self.temperatures), **dataclasses.asdict(self)}
        Path(path).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def from_file(cls, path: str | Path, *, nextn: int, rule: Verification, regime: Regime) -> ConfidenceTable:
        """Read a table for `nextn` drafts under a rule and a regime.

        Raises:
            ConfigError: the file cannot be read, is no table, or is one for another length, rule or regime.
        """
        try:
            table = cls._from_record(read_object(Path(path)))
        except (OSError, ValueError) as error:
            raise ConfigError(f"confidence table {path}: {error}") from error
        wanted = {"nextn": nextn, "rule": rule, "regime": regime}
        found = {"nextn": len(table.temperatures), "rule": table.rule, "regime": table.regime}
        for name, value in wanted.items():
            if found[name] != value:
                raise ConfigError(f"confidence table {path}: {name} is {found[name]!r}; this run needs {value!r}")
        return table

    @classmethod
    def _from_record(cls, record: dict[str, Any]) -> ConfidenceTable:
        names = [field.name for field in dataclasses.fields(cls)]
        if record.get("format") != FORMAT:
            raise ConfigError(f"format must be {FORMAT!r}")
        if set(record) != {"format", "nextn", *names}:
            raise ConfigError(f"keys are {shown(sorted(record))}; must be format, nextn, {', '.join(names)}")
        table = cls(**{name: record[name] for name in names})
        if record["nextn"] != len(table.temperatures):
            _refuse("nextn", record["nextn"], f"there are {len(table.temperatures)} temperatures")
        return table


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, list | tuple):
        _refuse(name, values, "must be a list of numbers")
    for value in values:
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            _refuse(name, values, "must be finite numbers")
    return tuple(float(value) for value in values)


def _refuse(name: str, value: Any, law: str) -> None:
    raise ConfigError(f"ConfidenceTable.{name} = {shown(value)}: {law}")
