"""What bounded replay costs on the bundled model: KL divergence and top-1 agreement with the run of all rows.

Figures, not a verdict: replay approximates by design. The reference gives both distributions; the other cases show
that the engine gives its bits. Knows the reference's forward pass.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from equivalence.errors import SetupError
from equivalence.findings import Findings
from equivalence.generators.checkpoints import Voices
from reference import tiny

RELEASED_WINDOW = 128

RELEASED_KEEPS = (140, 512)
"""Keeps of the released model. For another they are taken as they are, and scaled by the windows."""

LENGTH, ROWS = 640, 32
"""A prompt of LENGTH ids; its last row and the ROWS - 1 after it are compared."""

MOST_TEXTS = 2

TEXT = Path(tiny.__file__).parent / "README.md"
"""English of the project itself, which the bundled model has never seen."""


def run(voices: Voices, text: str = "") -> Findings:
    """Print the figures; a keep of all that the last row reads must cost nothing.

    text: what prompts are cut from, one after another; TEXT without. Raises SetupError where it is too short for one.
    """
    findings, config, model = Findings(), voices.model.config, voices.model
    depth, window = config.num_hidden_layers - config.decoder_start, config.sliding_window
    ids = voices.tokenizer.encode(text or TEXT.read_text(encoding="utf-8"), add_special_tokens=False).ids
    size = LENGTH + ROWS - 1
    if len(ids) < size:
        raise SetupError(f"the text for the figures has {len(ids)} ids and must have {size}")
    texts = torch.tensor(ids[: min(MOST_TEXTS, len(ids) // size) * size]).view(-1, size)  # [B, T]

    def rows(keep: int) -> Tensor:
        """Logits of the rows that are compared."""
        made = [model.forward(text, replay_start=LENGTH - keep)[LENGTH - 1 :] for text in texts]
        return torch.cat(made)  # [rows, V]

    with torch.no_grad():
        exact = rows(LENGTH)  # [rows, V]
        for keep in sorted({*RELEASED_KEEPS, *(keep * window // RELEASED_WINDOW for keep in RELEASED_KEEPS)}):
            replayed = rows(keep)  # [rows, V]
            divergence = kl(exact, replayed)  # [rows]
            agreed = (exact.argmax(-1) == replayed.argmax(-1)).double()  # [rows]
            whole = keep > depth * (window - 1)
            findings.figures.append(
                f"keep {keep} of {LENGTH}, window {window}: KL mean {float(divergence.mean()):.3g} nat, largest "
                f"{float(divergence.max()):.3g}, top-1 agreement {100 * float(agreed.mean()):.1f} %, {len(agreed)} rows"
                f"{', all that they read' if whole else ''}"
            )
            if whole:
                findings.values("whole receptive field", f"keep {keep}", replayed, exact)
    return findings.close()


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL divergence of softmax(q) from softmax(p), nat: [R, V] each to [R]."""
    log_p, log_q = torch.log_softmax(p, -1), torch.log_softmax(q, -1)  # [R, V]
    return (log_p.exp() * (log_p - log_q)).sum(-1)  # [R]
