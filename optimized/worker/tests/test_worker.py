"""The worker under a real scheduler: plans in, the sampled rows' logits out, whatever shares the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from optimized._core import Scheduler
from optimized.config import EngineConfig
from optimized.model.tests.random_models import RATIO_4, write_checkpoint
from optimized.worker.worker import Worker
from reference.spec.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.ci

OPTIONS: dict[str, Any] = {"max_model_len": 128, "device": "cpu", "page_size": 8, "max_num_batched_tokens": 20}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    write_checkpoint(RATIO_4, made, seed=3)
    return made


def greedy(
    folder: Path, prompts: list[list[int]], new: int, num_pages: int, sequences: int
) -> list[list[torch.Tensor]]:
    """Logits of each new token of each prompt, decoded greedily together."""
    config = EngineConfig(num_pages=num_pages, max_num_seqs=sequences, **OPTIONS)
    worker = Worker(folder, config)
    scheduler = Scheduler(worker.num_pages(), 8, sequences + 1, sequences, 20, 128)
    for index, prompt in enumerate(prompts):
        scheduler.add(index, np.array(prompt, dtype=np.int64), new)
    logits: list[list[torch.Tensor]] = [[] for _ in prompts]
    while (plan := scheduler.schedule()) is not None:
        sampled = [int(one) for one, row in zip(plan.request_ids, plan.sample_rows, strict=True) if row >= 0]
        found = worker.execute(plan)
        assert found.shape == (len(sampled), RATIO_4.vocab_size)
        for index, row in zip(sampled, found, strict=True):
            logits[index].append(row.clone())
        counts = np.array([int(row >= 0) for row in plan.sample_rows], dtype=np.int32)
        finished = np.zeros(len(counts), dtype=np.bool_)
        scheduler.commit(plan.step_id, plan.request_ids, found.argmax(dim=1).numpy(), counts, finished)
    return logits


def test_requests_together_equal_requests_alone_even_when_preempted(folder: Path, rng: np.random.Generator) -> None:
    prompts = [rng.integers(0, RATIO_4.vocab_size, size=size).tolist() for size in (3, 29, 12, 1, 40)]
    alone = [greedy(folder, [prompt], 9, 12, 1)[0] for prompt in prompts]
    for num_pages, sequences in ((60, 5), (12, 4), (9, 3)):
        together = greedy(folder, prompts, 9, num_pages, sequences)
        for found, expected in zip(together, alone, strict=True):
            assert len(found) == len(expected) == 9
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_page_size_that_cuts_a_group_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="page_size: got 6"):
        Worker(folder, EngineConfig(max_num_seqs=2, num_pages=9, **{**OPTIONS, "page_size": 6}))


def test_a_missing_tensor_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    data = (folder / "model.safetensors").read_bytes().replace(b'"norm.weight"', b'"morn.weight"')
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"norm\.weight"):
        Worker(tmp_path, EngineConfig(max_num_seqs=2, num_pages=9, **OPTIONS))
