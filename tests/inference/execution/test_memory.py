"""Memory for the KV cache where nobody said how much: after a trial pass, on a GPU that is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.toy import ToyModel

from inference.config import EngineConfig
from inference.execution import memory
from inference.execution.batch import Batch
from inference.execution.cache import num_kv_blocks
from inference.execution.models.errors import ModelError

FREE = 1_000_000


class ModelOnGpu(ToyModel):
    """The toy checks each batch that it is given. free: what the GPU has free before a pass, and after it."""

    device = SimpleNamespace(type="cuda")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ModelOnGpu:
    model = ModelOnGpu(max_model_len=100)
    monkeypatch.setattr(memory, "free_memory", lambda device: FREE if model.batches else 2 * FREE)
    return model


@pytest.mark.parametrize(("seats", "budget", "length"), [(1, 64, 64), (7, 64, 9), (4, 4, 1), (2, 4096, 100)])
def test_the_trial_is_the_largest_pass(model: ModelOnGpu, seats: int, budget: int, length: int) -> None:
    config = EngineConfig(max_num_seqs=seats, max_num_batched_tokens=budget, block_size=16)
    assert memory.kv_memory(config, model) == int(0.9 * FREE), "of what is free with a pass's memory taken"
    (batch,) = model.batches
    assert batch.context_lens.tolist() == [length] * seats
    assert len(batch.token_ids) == length * seats
    assert len(batch.logits_rows) == seats


def test_what_was_said_counts_and_a_cpu_has_a_default(model: ModelOnGpu) -> None:
    assert memory.kv_memory(EngineConfig(kv_memory=12345), model) == 12345
    assert memory.kv_memory(EngineConfig(), ToyModel()) == 1 << 30
    assert not model.batches


def test_blocks_of_a_gpu(model: ModelOnGpu) -> None:
    block = model.kv_bytes_per_block(16)
    assert num_kv_blocks(EngineConfig(max_num_seqs=512), model) == 512 * 7, "no more than all seats can fill"
    model.max_model_len = 1 << 20
    assert num_kv_blocks(EngineConfig(max_num_seqs=512), model) == int(0.9 * FREE) // block


def test_a_budget_that_the_gpu_does_not_hold(model: ModelOnGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(batch: Batch, cache: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model, "forward", full)
    with pytest.raises(ModelError, match="a pass over max_num_batched_tokens, which is 512, beside the model"):
        memory.kv_memory(EngineConfig(), model)
