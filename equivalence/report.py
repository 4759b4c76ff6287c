"""Writes what a run found: JSON for programs and, beside it, Markdown for people; decides nothing."""

from __future__ import annotations

import datetime
import json
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from equivalence.runner import CaseResult, CheckResult
from optimized import platforms
from optimized.commands import collect_env

FORMAT = 1

_ROOT = Path(__file__).parents[1]

_NUMBER = re.compile(r"-?\d{5}-?")


def write(results: list[CheckResult], path: Path, origin: dict[str, str]) -> Path:
    """Write `path` (JSON) and the same name with `.md`, with where the results come from. Returns the Markdown file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    top = {**origin, **environment({result.options.backend for result in results})}
    record = {"format": FORMAT, "environment": top, "checks": [_check_record(result) for result in results]}
    path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    markdown = path.with_suffix(".md") if path.suffix != ".md" else path.with_suffix(".report.md")
    lines = [*_summary_lines(results, top), *(line for result in results for line in _check_lines(result))]
    markdown.write_text("\n".join(lines) + "\n")
    return markdown


def origin(arguments: Sequence[str]) -> dict[str, str]:
    """What a run begins with: the time, the commit and the command that `arguments` belong to."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "command": shlex.join(["python", "-m", "equivalence", *arguments]),
    }


def environment(backends: set[str]) -> dict[str, str]:
    """Hardware and versions that a reader of the report needs; accelerators only of the backends named."""
    import torch

    found = [device for device in platforms.devices() if device.name.partition(":")[0] in backends - {"cpu"}]
    return {
        "processor": collect_env.processor(),
        **{device.name: device.description for device in found},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


def _commit() -> str:
    """The commit's short id, with `+changes` if tracked files differ from it; `unknown` outside a repository."""
    try:
        name, changed = _git("rev-parse", "--short=12", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+changes" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()


def replay_command(result: CaseResult) -> str:
    """The command that runs a differing case again, or empty."""
    return f"python -m equivalence replay {result.replay}" if result.replay else ""


def _finite(value: float) -> float | str:
    return value if abs(value) < float("inf") else str(value)


def _check_record(result: CheckResult) -> dict[str, object]:
    return {
        "check": result.check,
        "backend": result.options.backend,
        "seed": result.options.seed,
        "cases": result.cases,
        "differences": result.differences,
        "setup_error": result.setup_error,
        "seconds": round(result.seconds, 3),
        "results": [_case_record(case) for case in result.results],
    }


def _case_record(result: CaseResult) -> dict[str, object]:
    found = result.findings
    return {
        "name": result.case.name,
        "params": dict(result.case.params) if found.differences else {},
        "seconds": round(result.seconds, 3),
        "comparisons": found.comparisons,
        "differences": [vars(difference) for difference in found.differences],
        "measured": [
            {
                "sub_step": sub_step,
                "tolerance": name,
                "tensors": tally.tensors,
                "elements": tally.elements,
                "beyond": tally.beyond,
                "share": tally.share,
                "worst": _finite(tally.worst),
                "first": tally.first,
            }
            for (sub_step, name), tally in found.tallies.items()
        ],
        "close_calls": found.close_calls,
        "not_compared": found.not_compared,
        "figures": found.figures,
        "known_bad": result.known_bad,
        "replay": replay_command(result),
    }


def _summary_lines(results: list[CheckResult], top: dict[str, str]) -> list[str]:
    lines = ["# Equivalence report", "", *(f"- {name}: {_cell(value)}" for name, value in top.items()), ""]
    lines += [
        "| check | backend | seed | cases | comparisons | differences | wall s |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        comparisons = sum(case.findings.comparisons for case in result.results)
        lines.append(
            f"| {result.check} | {result.options.backend} | {result.options.seed} | {result.cases} | {comparisons} "
            f"| {result.differences} | {result.seconds:.1f} |"
        )
    return [*lines, ""]


def _check_lines(result: CheckResult) -> list[str]:
    """A check: what differs first, then how its kinds of cases fared, then the cases that have more to tell."""
    lines = [f"## {result.check}", "", result.last_line, ""]
    if result.setup_error:
        lines += [f"Could not start: {result.setup_error}", ""]
    differing = [case for case in result.results if case.findings.differences]
    if differing:
        lines += ["| differs | where first | how | again |", "|---|---|---|---|"]
        for case in differing:
            first = case.findings.differences[0]
            again = f"`{replay_command(case)}`" if case.replay else ""
            lines.append(f"| {case.case.name} | {_cell(first.item)} | {_cell(first.detail)} | {again} |")
        lines.append("")
    lines += _kind_lines(result)
    for case in result.results:
        lines += _case_lines(case) if _tells_more(case) else []
    return [*lines, ""]


def _kind_lines(result: CheckResult) -> list[str]:
    """One row for all cases whose names differ in their numbers only."""
    kinds: dict[str, list[CaseResult]] = {}
    for case in result.results:
        kinds.setdefault(_NUMBER.sub("", case.case.name), []).append(case)
    lines = [
        "| cases | how many | comparisons | differing | close calls | not compared | s a case | longest s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, cases in kinds.items():
        found, seconds = [case.findings for case in cases], [case.seconds for case in cases]
        counts = [
            sum(each.comparisons for each in found),
            sum(bool(each.differences) for each in found),
            sum(len(each.close_calls) for each in found),
            sum(len(each.not_compared) for each in found),
        ]
        figures = f"{sum(seconds) / len(seconds):.2f} | {max(seconds):.1f}"
        lines.append(f"| {kind} | {len(cases)} | {' | '.join(map(str, counts))} | {figures} |")
    return lines


def _tells_more(result: CaseResult) -> bool:
    """Whether a case says more than that it agrees; figures of exact comparisons are all 0 then."""
    found = result.findings
    measured = any(name != "exact" for _, name in found.tallies)
    return bool(found.differences or found.figures or found.close_calls or result.known_bad or measured)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _case_lines(result: CaseResult) -> list[str]:
    found = result.findings
    lines = ["", f"### {result.case.name}", ""]
    lines += [f"- **{item.item}** ({item.kind}): {item.detail}" for item in found.differences]
    if result.known_bad:
        lines.append(f"- known to differ: {result.known_bad}")
    if result.replay:
        lines.append(f"- again: `{replay_command(result)}`")
    lines += [f"- {figure}" for figure in found.figures]
    if found.tallies:
        lines += ["", "| sub-step | row | tensors | elements | measured | first outside |", "|---|---|---|---|---|---|"]
    for (sub_step, name), tally in found.tallies.items():
        pooled = tally.row.share < 1
        figure = f"{100 * tally.share:.4f} %" if pooled else f"{tally.worst:.3g}"
        lines.append(f"| {sub_step} | {name} | {tally.tensors} | {tally.elements} | {figure} | {_cell(tally.first)} |")
    lines += _listing("close calls", found.close_calls) + _listing("not compared", found.not_compared)
    return lines


def _listing(title: str, items: list[str]) -> list[str]:
    return ["", f"{len(items)} {title}:", "", *(f"- {item}" for item in items)] if items else []
