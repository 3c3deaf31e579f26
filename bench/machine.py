"""This machine: what it is, and how fast it multiplies and reads at best. Every limit in the tables comes from here.

Knows: processors, memory, versions, timing. Must not know: engines, requests.
A peak is what some program reaches here, not what a data sheet says: the fastest of PyTorch's product and our own, over
shapes of the model and a large square, each the best of several runs.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels import ops

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "triton", "transformers", "numpy")
SQUARE = (2048, 2048, 2048)  # rows, outputs, inputs
ROWS = 512  # of a product at a shape of the model


@dataclass(frozen=True, slots=True)
class Peaks:
    """FLOP a second of matrix products, bytes a second of reading memory."""

    bfloat16: float
    float32: float
    read: float

    def of(self, dtype: torch.dtype) -> float:
        return self.bfloat16 if dtype == torch.bfloat16 else self.float32


def best_seconds(run: Callable[[], object], repeats: int) -> float:
    """The shortest of `repeats` runs, after one that warms up."""
    run()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return min(times)


@torch.inference_mode()
def matrix_peak(dtype: torch.dtype, shapes: Iterable[tuple[int, int]], repeats: int = 5) -> float:
    """FLOP/s of the fastest product on the CPU; shapes: (outputs, inputs) of the model's weights."""
    best = 0.0
    for rows, outputs, inputs in {SQUARE, *((ROWS, *shape) for shape in shapes)}:
        x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
        packed = ops.pack_linear(weight)
        seconds = min(
            best_seconds(lambda x=x, weight=weight: torch.nn.functional.linear(x, weight), repeats),
            best_seconds(lambda x=x, packed=packed: ops.linear(x, packed), repeats),
        )
        best = max(best, 2 * rows * outputs * inputs / seconds)
    return best


@torch.inference_mode()
def read_bandwidth(size: int = 1 << 30, repeats: int = 5) -> float:
    """Bytes/s at which the CPU's threads together read memory: sums over a buffer far larger than its caches."""
    buffer = torch.ones(size // 4, dtype=torch.float32)
    views = (buffer, buffer.view(torch.int64))
    return size / min(best_seconds(view.sum, repeats) for view in views)


def measure_peaks(shapes: Iterable[tuple[int, int]], quick: bool = False) -> Peaks:
    shapes, repeats = list(shapes), 2 if quick else 6
    return Peaks(
        matrix_peak(torch.bfloat16, shapes, repeats),
        matrix_peak(torch.float32, shapes, repeats),
        read_bandwidth(1 << (28 if quick else 30), repeats),
    )


def describe() -> str:
    """The machine in words: "2 cores of a(n) ..., 23 GiB of memory, no GPU"."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{cores()} cores, {_cpu_name()}, {_memory_gib():.0f} GiB of memory, {gpu}"


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> str:
    """Versions of what the figures depend on, and the commit."""
    parts = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            parts.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            parts.append(f"no {name}")
    return ", ".join([*parts, _commit()])


def _commit() -> str:
    """ "commit 0123abc", with a word where the files differ from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return f"commit {commit}" + (" with changes" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "no git commit"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _cpu_name(path: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name with the features that decide how it multiplies."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16", "avx512f": "AVX-512", "avx2": "AVX2"}
    best = next((name for flag, name in flags.items() if flag in fields.get("flags", "").split()), "")
    return fields.get("model name", platform.machine()) + (f" ({best})" if best else "")


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
