"""On a GPU: how near an 8B-shaped model comes to the roofline. Decode against the measured copy bandwidth, prefill
against the measured matrix peak.

    python -m bench.roofline [--tiny]

Knows: shapes, devices. Must not know: requests, text. Weights are random: they cost what others cost. A decode step
reads all weights and each request's KV once; a prefill multiplies each weight with each token. With --tiny a small
shape runs on the CPU, which shows that it works and nothing about speed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from bench.limits import Costs, costs_of, shapes_of
from bench.steps import decode_batch
from inference.execution.batch import Batch
from inference.execution.cache import KVCache
from inference.execution.models.decoder_config import DecoderConfig
from inference.execution.models.llama import LlamaModel
from inference.execution.runner import ModelRunner

BATCHES = (1, 16, 128)
CONTEXT, PREFILL = 1024, 4096
EIGHT_B = DecoderConfig(4096, 14336, 32, 32, 8, 128, 1e-5, 128256, 8192, False, 500000.0)
TINY = DecoderConfig(64, 128, 2, 4, 2, 16, 1e-5, 512, 512, True, 10000.0)


@dataclass(frozen=True, slots=True)
class Near:
    """One row: what ran, its milliseconds, what it reached a second, and the measured most of that."""

    what: str
    ms: float
    reached: float
    most: float
    unit: str

    @property
    def share(self) -> float:
        return self.reached / self.most


class RandomWeights:
    """Stands in for a WeightFolder."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device

    def take(self, name: str, *shape: int) -> torch.Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        return torch.empty(shape, dtype=self._dtype, device=self._device).normal_(0, shape[-1] ** -0.5)

    def take_four_bits(self, name: str, rows: int, columns: int) -> None:
        return None


def measure(config: DecoderConfig, device: torch.device, context: int, prefill: int, repeats: int = 20) -> list[Near]:
    dtype = torch.bfloat16
    weights = RandomWeights(dtype, device)
    model = LlamaModel(config, weights, dtype, device, config.max_position_embeddings)  # type: ignore[arg-type]
    costs = costs_of(model)
    if costs is None:
        raise TypeError("the roofline needs the native decoder")
    copied = copy_bandwidth(device)
    rows = [_decode(model, batch, context, costs, copied, repeats) for batch in BATCHES]
    peak = product_peak(list(shapes_of(config).values()), prefill, device, dtype)
    return [*rows, _prefill(model, prefill, costs, peak, max(3, repeats // 4))]


def _decode(model: LlamaModel, batch: int, context: int, costs: Costs, copied: float, repeats: int) -> Near:
    cache = model.new_cache(batch * -(-context // 16), 16)
    runner = ModelRunner(model, cache)
    step = decode_batch(batch, context, cache)
    seconds = seconds_of(lambda: runner.execute(step), model.device, repeats)
    moved = costs.step_bytes(batch, context, four_bits=model.device.type == "cpu")
    return Near(f"decode, batch {batch}, context {context}", seconds * 1e3, moved / seconds / 1e9, copied / 1e9, "GB/s")


def _prefill(model: LlamaModel, tokens: int, costs: Costs, peak: float, repeats: int) -> Near:
    cache = model.new_cache(-(-tokens // 16), 16)
    runner = ModelRunner(model, cache)
    batch = prefill_batch(tokens, cache)
    seconds = seconds_of(lambda: runner.execute(batch), model.device, repeats)
    sizes = {name: outputs * inputs for name, (outputs, inputs) in shapes_of(model.config).items()}
    once = sizes["out"] + sizes["gate_up"] + sizes["down"]  # of the last layer: computed for the last token only
    flop = tokens * (costs.prompt_flop - 2 * once) + 2 * (once + costs.head_weights)
    flop += tokens * (tokens + 1) // 2 * costs.attention_flop
    return Near(f"prefill, {tokens} tokens", seconds * 1e3, flop / seconds / 1e12, peak / 1e12, "TFLOP/s")


def prefill_batch(tokens: int, cache: KVCache) -> Batch:
    """One prompt, whole."""
    place = np.arange(tokens, dtype=np.int64)
    blocks = -(-tokens // cache.block_size)
    return Batch(
        token_ids=place % 90 + 100,
        positions=place,
        slots=place,
        block_tables=np.arange(blocks, dtype=np.int32)[None],
        query_starts=np.array([0, tokens], dtype=np.int32),
        context_lens=np.array([tokens], dtype=np.int32),
        logits_rows=np.array([tokens - 1], dtype=np.int64),
    )


def copy_bandwidth(device: torch.device, size: int = 1 << 30) -> float:
    """Bytes/s read and written by a copy of a large buffer."""
    size = size if device.type == "cuda" else size // 16
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), device, 20)


def product_peak(shapes: list[tuple[int, int]], rows: int, device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of the fastest product: at the model's shapes and a large square."""
    side = 8192 if device.type == "cuda" else 512
    best = 0.0
    for count, outputs, inputs in [(side, side, side), *((rows, *shape) for shape in shapes)]:
        x = torch.randn(count, inputs, device=device).to(dtype)
        weight = torch.randn(outputs, inputs, device=device).to(dtype)
        seconds = seconds_of(lambda x=x, weight=weight: torch.nn.functional.linear(x, weight), device, 10)
        best = max(best, 2 * count * outputs * inputs / seconds)
    return best


@torch.inference_mode()
def seconds_of(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds of a call, the device idle before and after it: launches are counted, as a step has to make
    them."""
    times = []
    for _ in range(repeats + 3):
        _wait(device)
        begun = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - begun)
    return float(np.median(times[3:]))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rows_here() -> list[Near] | None:
    """The table of this machine's GPU; None where there is none."""
    if not torch.cuda.is_available():
        return None
    return measure(EIGHT_B, torch.device("cuda"), CONTEXT, PREFILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small shape on the CPU, to see that it works")
    options = parser.parse_args()
    rows = measure(TINY, torch.device("cpu"), 64, 128, 3) if options.tiny else rows_here()
    if rows is None:
        print("There is no CUDA device here, so there is no roofline to measure.")
    for row in rows or []:
        print(f"{row.what}: {row.ms:.2f} ms, {row.reached:.1f} of {row.most:.1f} {row.unit}, {row.share:.0%}")


if __name__ == "__main__":
    main()
