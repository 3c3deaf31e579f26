"""A GGUF file, converted once into a folder of config.json, safetensors and tokenizer files.

Knows: GGUF's names and layouts for the Llama architecture, Hugging Face's names for the same. Must not know: torch,
how a model runs. The folder is what transformers would save for the dequantised model: it can load it too.

Quantised weights are stored as float32, in which they are exact; F16 and BF16 stay as they are. So the folder is larger
than the file (SmolLM2: 98 MB become 540 MB), and loading it is reading it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inference.execution.models import quants
from inference.execution.models.errors import ModelError
from inference.execution.models.gguf_tokenizer import end_ids, write_tokenizer
from inference.execution.models.safetensors_file import TensorPlan, write_safetensors
from inference.execution.models.store import make_once

CONVERTER = 1  # raise it when the folder of a file changes: it is part of the folder's name
STORED = {"F16": "F16", "BF16": "BF16"}  # others: F32
OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
INNER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def convert_gguf(path: Path, cache_dir: Path, progress: Callable[[str], None] = print) -> Path:
    """Folder of the converted model in `cache_dir`, made where it is not there yet (seconds for SmolLM2).

    Raises ModelError for a file that can't be read, an architecture or a tensor type that is not supported.
    """
    if not path.is_file():
        raise ModelError(f"there is no file {path}.")

    def build(folder: Path) -> None:
        progress(f"converting {path.name} (once)")
        reader = _open(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        config = model_config(metadata, {tensor.name for tensor in reader.tensors})
        _write_json(folder / "config.json", config)
        _write_json(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
        write_tokenizer(metadata, folder, config["max_position_embeddings"])
        write_safetensors(folder / "model.safetensors", _plans(reader.tensors, config, progress))

    # Four-bit weights grow eightfold; a header alone does not say how much of the file they are.
    return make_once(cache_dir / _key(path), build, 8 * path.stat().st_size, f"converting {path.name}")


def _key(path: Path) -> str:
    """Name of the folder: another for another file, the same for the same wherever it lies. Reads 2 MiB at most."""
    state = path.stat()
    digest = hashlib.sha256(f"{CONVERTER} {state.st_size} {state.st_mtime_ns} ".encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        file.seek(max(0, state.st_size - (1 << 20)))
        digest.update(file.read())
    return f"{path.stem}-{digest.hexdigest()[:12]}"


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError) as error:
        raise ModelError(f"{path.name} is not a GGUF file that can be read: {error}.") from error


def model_config(metadata: Mapping[str, Any], tensor_names: set[str]) -> dict[str, Any]:
    """config.json in Hugging Face's form. Raises ModelError for what the decoder does not do."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"GGUF models of architecture {architecture!r} are not supported; 'llama' is.")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in tensor_names:
        raise ModelError(f"the GGUF's rotary scaling ({scaling}) is not supported; take the model as safetensors.")
    if metadata.get("llama.expert_count", 0):
        raise ModelError("GGUF models with experts are not supported.")

    def need(key: str) -> Any:
        if f"llama.{key}" not in metadata:
            raise ModelError(f"the GGUF file does not say llama.{key}.")
        return metadata[f"llama.{key}"]

    width, heads = need("embedding_length"), need("attention.head_count")
    kv_heads = metadata.get("llama.attention.head_count_kv", heads)
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        raise ModelError("GGUF models whose layers differ in heads are not supported.")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": metadata.get("llama.attention.key_length", width // heads),
        "rms_norm_eps": _short(need("attention.layer_norm_rms_epsilon")),
        "rope_theta": _short(metadata.get("llama.rope.freq_base", 10000.0)),
        "max_position_embeddings": need("context_length"),
        "vocab_size": len(metadata.get("tokenizer.ggml.tokens", ())),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_ids(metadata),
        "dtype": "float32",
    }


def _plans(tensors: list[Any], config: dict[str, Any], progress: Callable[[str], None]) -> Iterator[TensorPlan]:
    for i, tensor in enumerate(tensors):
        kind, shape = tensor.tensor_type.name, tuple(int(n) for n in reversed(tensor.shape))
        quants.check_type(kind)
        stored = STORED.get(kind, "F32")

        def values(i: int = i, tensor: Any = tensor, kind: str = kind, shape: tuple[int, ...] = shape) -> np.ndarray:
            if i % (len(tensors) // 4 + 1) == 0:
                progress(f"  {i} of {len(tensors)} tensors")
            raw = np.asarray(tensor.data)
            weights = _plain_words(raw, shape) if kind in STORED else quants.dequantise(raw, kind, shape)
            return _undo_interleave(tensor.name, weights, config)

        yield TensorPlan(hugging_face_name(tensor.name), stored, shape, values)


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`. Raises ModelError for an unknown tensor."""
    if name in OUTER:
        return OUTER[name]
    head, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    if head == "blk" and layer.isdecimal() and part in INNER:
        return f"model.layers.{layer}.{INNER[part]}"
    raise ModelError(f"the GGUF file has a tensor {name!r} that a Llama decoder has no use for.")


def _undo_interleave(name: str, weights: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """llama.cpp stores q and k of the llama architecture with each head's rotary halves interleaved; put them back."""
    if name.endswith("attn_q.weight"):
        heads = config["num_attention_heads"]
    elif name.endswith("attn_k.weight"):
        heads = config["num_key_value_heads"]
    else:
        return weights
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _plain_words(raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.ascontiguousarray(raw).reshape(-1).view("<u2").reshape(shape)


def _short(value: float) -> float:
    """GGUF holds float32: the shortest decimal that means it (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(value)))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
