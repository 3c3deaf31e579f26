"""One way to start a kernel. Triton's types do not know that a launch takes plain numbers for constexpr parameters."""

from typing import Any


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Run kernel over grid; constants are its constexpr parameters and Triton's own options (num_warps)."""
    kernel[grid](*args, **constants)
