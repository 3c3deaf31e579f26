"""Every Triton kernel, compiled for four chips that are not here: it fits their registers and their shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = {"sm_80": 166_912, "sm_90": 232_448, "sm_100": 232_448, "gfx942": 65_536}  # bytes that a program may have
ROOT = Path(__file__).parents[2]
KERNELS = {
    *(f"{what}, {dim} wide" for what in ("paged attention", "paged decode, 8 splits") for dim in (64, 80, 128, 256)),
    *("paged decode, 1 splits, 128 wide", "paged decode, merge", "kv write", "rotary", "rotary + kv write"),
    *("rms norm", "add + norm", "silu mul", "sampling, sums of spans", "sampling, race"),
}


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str | int]]:
    """A line for each kernel, chip and dtype."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
        "TRITON_DEFAULT_FP_FUSION": "1",  # what it is without it, save for a warning
    }
    command = [sys.executable, "-m", "support.ahead_of_time"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize("chip", SHARED)
def test_no_kernel_spills_or_takes_more_than_the_chip_has(
    chip: str, costs: list[dict[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    here = [cost for cost in costs if cost["chip"] == chip]
    assert {cost["kernel"] for cost in here} >= KERNELS
    with capsys.disabled():
        print(f"\n{chip:8} {'kernel':36} {'dtype':5} registers  spills  shared")
        for cost in here:
            numbers = f"{cost['registers']:9} {cost['spills']:7} {cost['shared']:7}"
            print(f"{'':8} {cost['kernel']:36} {cost['dtype']:5} {numbers}")
    assert not [cost for cost in here if cost["spills"] != 0]
    assert not [cost for cost in here if cost["shared"] > SHARED[chip]]
    assert all(0 < cost["registers"] <= 512 for cost in here)


def test_decode_reads_keys_and_values_in_vectors(costs: list[dict[str, int]]) -> None:
    """Where the compiler can't see through a mask or an offset, it loads one by one, and decode is mostly loads."""
    decodes = [cost for cost in costs if cost["kernel"].startswith("paged decode,")]
    assert len(decodes) == len(SHARED) * 9
    assert not [cost for cost in decodes if cost["narrow"] != 0]
