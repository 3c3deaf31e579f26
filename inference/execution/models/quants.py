"""GGUF's tensor types as numpy: what the bytes of a block mean.

Knows: block layouts of ggml (ggml-common.h, ggml-quants.c of llama.cpp). Must not know: files, models, torch.
A block is 32 weights in a row; d and m are float16. Values are exact in float32.

    Q4_0  d, 16 bytes            d * (q - 8)       byte j: weight j in its low half, weight j + 16 in its high half
    Q4_1  d, m, 16 bytes         d * q + m
    Q8_0  d, 32 signed bytes     d * q
"""

from __future__ import annotations

import numpy as np

from inference.execution.models.errors import ModelError

BLOCK = 32
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
PLAIN = ("F32", "F16", "BF16")
SUPPORTED = (*PLAIN, *BLOCK_BYTES)


def dequantise(raw: np.ndarray, type_name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Weights `shape` (last dim fastest) in float32 from the bytes `raw` of a tensor of `type_name`.

    Raises ModelError for a type that is not supported, and where the bytes don't fit the shape.
    """
    check_type(type_name)
    data = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    count = int(np.prod(shape))
    if data.size != stored_bytes(type_name, count):
        raise ModelError(f"{count} weights of type {type_name} can't lie in {data.size} bytes.")
    if type_name == "F32":
        return data.view("<f4").reshape(shape)
    if type_name == "F16":
        return data.view("<f2").astype(np.float32).reshape(shape)
    if type_name == "BF16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    blocks = data.reshape(-1, BLOCK_BYTES[type_name])
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    out = np.empty((len(blocks), BLOCK), np.float32)
    if type_name == "Q8_0":
        np.multiply(blocks[:, 2:].view(np.int8), scale, out=out)
    elif type_name == "Q4_1":
        _halves(blocks[:, 4:], out)
        out *= scale
        out += blocks[:, 2:4].copy().view("<f2").astype(np.float32)
    else:
        _halves(blocks[:, 2:], out)
        out -= 8
        out *= scale
    return out.reshape(shape)


def check_type(type_name: str) -> None:
    if type_name not in SUPPORTED:
        raise ModelError(f"GGUF tensors of type {type_name} are not supported; there are: {', '.join(SUPPORTED)}.")


def stored_bytes(type_name: str, count: int) -> int:
    """Bytes that `count` weights take in the file."""
    if type_name in BLOCK_BYTES:
        return count // BLOCK * BLOCK_BYTES[type_name] if count % BLOCK == 0 else -1
    return count * (4 if type_name == "F32" else 2)


def _halves(packed: np.ndarray, out: np.ndarray) -> None:
    out[:, :16] = packed & 0x0F
    out[:, 16:] = packed >> 4
