"""GGUF's tensor types as numpy: what the bytes of a block mean.

Knows: block layouts of ggml (ggml-common.h, ggml-quants.c of llama.cpp). Must not know: files, models, torch.
d, m are float16, q the weight's bits. A block of the first six types is 32 weights in a row, byte j of its low bits
holds weight j in its low half and weight j + 16 in its high half; K types are 256 weights. Values are as in float32.

    Q4_0  d, 16 bytes                  d * (q - 8)
    Q4_1  d, m, 16 bytes               d * q + m
    Q5_0  d, 4 bytes, 16 bytes         d * (q - 16)         bit j of the 4 bytes is the high bit of weight j
    Q5_1  d, m, 4 bytes, 16 bytes      d * q + m
    Q8_0  d, 32 signed bytes           d * q
    Q4_K  d, m, 12 bytes, 128 bytes    d * s * q - m * t    s, t: six bits for each 32 weights, in the 12 bytes
    Q5_K  d, m, 12, 32, 128 bytes      d * s * q - m * t    bit j of byte i of the 32: high bit of weight 32 j + i
    Q6_K  128, 64, 16 bytes, d         d * s * (q - 32)     s: a signed byte for each 16 weights
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from inference.execution.models.errors import ModelError

PLAIN = ("F32", "F16", "BF16")
FOUR_BITS = {"Q4_0": 18, "Q4_1": 20}  # types that are scale * bits + minimum for each 32 weights: bytes of a block
HALVES = np.array([0, 4], np.uint8)[:, None]  # shifts that give the low and the high half of a byte


class BlockType(NamedTuple):
    """weights, stored bytes of a block, and values float32 [n, weights] of bytes [n, stored bytes]."""

    weights: int
    stored: int
    values: Callable[[np.ndarray], np.ndarray]


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
    block = BLOCKS[type_name]
    return block.values(data.reshape(-1, block.stored)).reshape(shape)


def check_type(type_name: str) -> None:
    if type_name not in SUPPORTED:
        raise ModelError(f"GGUF tensors of type {type_name} are not supported; there are: {', '.join(SUPPORTED)}.")


def stored_bytes(type_name: str, count: int) -> int:
    """Bytes that `count` weights take in the file; -1 where they don't fill blocks."""
    if type_name in BLOCKS:
        block = BLOCKS[type_name]
        return count // block.weights * block.stored if count % block.weights == 0 else -1
    return count * (4 if type_name == "F32" else 2)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_low_bits(blocks[:, 2:]), blocks, less=8)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_low_bits(blocks[:, 4:]), blocks, plus=_half(blocks[:, 2:4]))


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_low_bits(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), blocks, less=16)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_low_bits(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), blocks, plus=_half(blocks[:, 2:4]))


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _scaled(blocks[:, 2:].view(np.int8), blocks)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    low = blocks[:, 16:].reshape(-1, 4, 1, 32) >> HALVES & 0x0F
    return _k_scaled(low, blocks)


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    low = (blocks[:, 48:].reshape(-1, 4, 1, 32) >> HALVES & 0x0F).reshape(-1, 8, 32)
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _k_scaled(low | high << 4, blocks)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    # Halves of 128 weights: two bytes of low bits and one byte of high bits for each four weights, 32 apart.
    low = (blocks[:, :128].reshape(-1, 2, 1, 64) >> HALVES & 0x0F).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    q = (low | high << 4).astype(np.float32) - 32
    scale = _half(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8)
    return (q.reshape(-1, 16, 16) * scale[:, :, None]).reshape(-1, 256)


def _scaled(q: np.ndarray, blocks: np.ndarray, less: int = 0, plus: np.ndarray | None = None) -> np.ndarray:
    """d * (q - less) + plus for blocks that begin with d. In place: a tensor of these is larger than the file's."""
    values = q.astype(np.float32)
    if less:
        values -= less
    values *= _half(blocks[:, :2])
    if plus is not None:
        values += plus
    return values


def _k_scaled(q: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """d * s * q - m * t for blocks that begin with d, m and twelve bytes of s and t; q of 8 times 32 weights."""
    a, b, c = (blocks[:, start : start + 4] for start in (4, 8, 12))
    s = np.concatenate([a & 0x3F, c & 0x0F | a >> 2 & 0x30], axis=1)
    t = np.concatenate([b & 0x3F, c >> 4 | b >> 2 & 0x30], axis=1)
    values = q.reshape(-1, 8, 32) * (_half(blocks[:, :2]) * s)[:, :, None]
    values -= (_half(blocks[:, 2:4]) * t)[:, :, None]
    return values.reshape(-1, 256)


def _half(two_bytes: np.ndarray) -> np.ndarray:
    """float16 as float32 [n, 1]."""
    return two_bytes.copy().view("<f2").astype(np.float32)


def _low_bits(packed: np.ndarray) -> np.ndarray:
    return (packed[:, None, :] >> HALVES & 0x0F).reshape(len(packed), -1)


def _fifth_bits(packed: np.ndarray) -> np.ndarray:
    return np.unpackbits(packed, axis=1, bitorder="little") << 4


BLOCKS = {
    "Q4_0": BlockType(32, 18, _q4_0),
    "Q4_1": BlockType(32, 20, _q4_1),
    "Q5_0": BlockType(32, 22, _q5_0),
    "Q5_1": BlockType(32, 24, _q5_1),
    "Q8_0": BlockType(32, 34, _q8_0),
    "Q4_K": BlockType(256, 144, _q4_k),
    "Q5_K": BlockType(256, 176, _q5_k),
    "Q6_K": BlockType(256, 210, _q6_k),
}
SUPPORTED = (*PLAIN, *BLOCKS)
