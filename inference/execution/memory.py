"""How much memory a KV cache may take where nobody said.

Knows: what a GPU has free, what a pass takes. Must not know: requests, blocks that are in use.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from inference.config import EngineConfig
from inference.execution.batch import Batch
from inference.execution.models.errors import ModelError
from inference.execution.models.protocol import Model

log = logging.getLogger("batchscope.engine")

ON_CPU = 1 << 30  # bytes
SHARE = 0.9  # of what a GPU has free after a trial: CUDA graphs and fragments need some, too


def kv_memory(config: EngineConfig, model: Model) -> int:
    """Bytes for the KV cache: kv_memory, or 1 GiB on a CPU, or what a GPU has to spare (as in vLLM, from a trial pass).

    Raises ModelError where not even the trial fits.
    """
    if config.kv_memory is not None:
        return config.kv_memory
    device = getattr(model, "device", None)
    if device is None or device.type != "cuda":
        return ON_CPU
    try:
        _try_out(config, model)
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"the GPU's memory does not hold a pass over max_num_batched_tokens, which is "
            f"{config.max_num_batched_tokens}, beside the model; set it lower."
        ) from error
    memory = int(SHARE * free_memory(device))
    log.info("kv_memory: %.1f GiB", memory / (1 << 30))
    return memory


def free_memory(device: Any) -> int:
    """Bytes that a GPU has free. What PyTorch keeps of a pass that is over, to use it again, is not among them."""
    torch.cuda.synchronize(device)
    return torch.cuda.mem_get_info(device)[0]


@torch.inference_mode()
def _try_out(config: EngineConfig, model: Model) -> None:
    """The largest pass there can be: the whole budget, and logits for every seat."""
    batch, blocks = trial_batch(config, model.max_model_len)
    model.forward(batch, model.new_cache(blocks, config.block_size))


def trial_batch(config: EngineConfig, max_model_len: int) -> tuple[Batch, int]:
    """A prompt a seat, together as many tokens as the budget allows; and the blocks that they fill."""
    rows = config.max_num_seqs
    length = min(config.max_num_batched_tokens // rows, max_model_len)
    width = -(-length // config.block_size)
    tables = np.arange(rows * width, dtype=np.int32).reshape(rows, width)
    position = np.arange(length)
    slots = tables[:, position // config.block_size] * config.block_size + position % config.block_size
    ends = length * np.arange(1, rows + 1)
    batch = Batch(
        token_ids=np.zeros(rows * length, np.int64),
        positions=np.tile(position, rows),
        slots=slots.reshape(-1).astype(np.int64),
        block_tables=tables,
        query_starts=np.concatenate([[0], ends]).astype(np.int32),
        context_lens=np.full(rows, length, np.int32),
        logits_rows=ends - 1,
    )
    return batch, rows * width
