"""What bounded replay costs on the bundled model: KL divergence and top-1 agreement with the run of all rows.

Figures, not a verdict: replay approximates by design. The reference gives both distributions; the other cases show
that the engine gives its bits. Knows the reference's forward pass.
"""

from __future__ import annotations

import difflib
import heapq

import torch
from torch import Tensor

from equivalence.findings import Findings
from equivalence.generators.checkpoints import Voices

RELEASED_WINDOW = 128

RELEASED_KEEPS = (140, 512)
"""Keeps of the released model; scaled by the windows for another."""

LENGTH, ROWS = 320, 32
"""Of each text, the rows from the end of a prompt of LENGTH ids on are compared."""

TEXTS = (heapq.__about__, difflib.SequenceMatcher.__doc__)
"""English of the standard library; the bundled model was trained on its like."""


def run(voices: Voices) -> Findings:
    """Print the figures; a keep of all that the last row reads must cost nothing."""
    findings, config, model = Findings(), voices.model.config, voices.model
    depth, window = config.num_hidden_layers - config.decoder_start, config.sliding_window
    keeps = [keep * window // RELEASED_WINDOW for keep in RELEASED_KEEPS]
    with torch.no_grad():
        ids = [voices.tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
        texts = [torch.tensor(text[: LENGTH + ROWS - 1]) for text in ids]
        exact = [model.forward(text)[LENGTH - 1 :] for text in texts]
        for keep in keeps:
            starts = max(0, LENGTH - keep)
            replayed = [model.forward(text, replay_start=starts)[LENGTH - 1 :] for text in texts]
            pairs = list(zip(exact, replayed, strict=True))
            divergence = torch.cat([kl(p, q) for p, q in pairs])  # [rows]
            agreed = torch.cat([p.argmax(-1) == q.argmax(-1) for p, q in pairs])  # [rows]
            findings.figures.append(
                f"keep {keep} of {LENGTH}, window {window}: KL mean {float(divergence.mean()):.3g} nat, largest "
                f"{float(divergence.max()):.3g}, top-1 agreement {100 * float(agreed.double().mean()):.1f} %"
            )
            if keep > depth * (window - 1):
                findings.values("whole receptive field", f"keep {keep}", torch.cat(replayed), torch.cat(exact))
    return findings.close()


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL divergence of softmax(q) from softmax(p), nat: [R, V] each to [R]."""
    log_p, log_q = torch.log_softmax(p, -1), torch.log_softmax(q, -1)  # [R, V]
    return (log_p.exp() * (log_p - log_q)).sum(-1)  # [R]
