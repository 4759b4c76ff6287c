"""What drafts are worth is told from what was generated: rates, tau and acceptance belong together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import speculation

pytestmark = pytest.mark.ci

SMALL = ["--batch", "2", "--temperature", "1", "--context", "8", "--tokens", "6", "--rounds", "1", "--nextn", "2"]


def test_every_setting_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert speculation.main([*SMALL, "--report", str(report)]) == 0
    figures = json.loads(report.read_text())["figures"]
    wanted = ["off", *(f"{rule}, {lengths}" for rule in ("coupled", "ratio") for lengths in ("fixed", "scheduled"))]
    assert [figure["system"] for figure in figures] == wanted
    for figure in figures:
        drafts = 0 if figure["system"] == "off" else 2
        assert len(figure["unconditional"]) == len(figure["confidence_error"]) == drafts
        assert figure["full"] == figure["steps"] * 2 * (1 + drafts)
        if drafts:
            # Every block commits what it keeps and the token after, in 5 tokens a sequence as without drafts.
            assert figure["tau"] == pytest.approx(1 + sum(figure["unconditional"]))
            assert max(figure["unconditional"]) <= 1
    assert "hardware: " in capsys.readouterr().out


def test_prompts_are_pieces_of_the_text_in_order() -> None:
    assert speculation.pieces(list(range(7)), 3, 3) == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    with pytest.raises(SystemExit, match="--text has 2 tokens; needed: at least --context = 3"):
        speculation.pieces([1, 2], 1, 3)
