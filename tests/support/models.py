"""Small random decoders of the native family, GGUF files made from them, and batches for them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from inference.execution.batch import Batch
from inference.execution.models.decoder_config import read_config
from inference.execution.models.gguf_tokenizer import write_tokenizer
from inference.execution.models.llama import LlamaModel
from inference.execution.models.weights import WeightFolder

TINY = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
    "initializer_range": 0.2,  # so that logits differ by more than rounding
}


def tiny_llama(**overrides: Any) -> LlamaForCausalLM:
    return tiny_model("Llama", **overrides)  # type: ignore[return-value]


def tiny_model(family: str, **overrides: Any) -> PreTrainedModel:
    """A model of transformers' classes of that name. Norms and biases are random too: ones and zeros hide faults."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**TINY, **overrides})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.3)
    return model


def load_llama(folder: Path, dtype: torch.dtype = torch.float32) -> LlamaModel:
    config = read_config(folder)
    weights = WeightFolder(folder, dtype, torch.device("cpu"))
    return LlamaModel(config, weights, dtype, torch.device("cpu"), config.max_position_embeddings)


class PagedSequences:
    """Sequences whose blocks lie scattered in the pool. `batch` computes the next n tokens of some of them."""

    def __init__(self, sequences: list[list[int]], block_size: int, num_blocks: int, seed: int = 0) -> None:
        self.sequences, self.block_size = sequences, block_size
        self.computed = [0] * len(sequences)
        blocks = np.random.default_rng(seed).permutation(num_blocks).astype(np.int32)
        per_sequence = num_blocks // len(sequences)
        self.tables = blocks[: per_sequence * len(sequences)].reshape(len(sequences), per_sequence)

    def batch(self, counts: Iterable[tuple[int, int]], every_row: bool = True) -> Batch:
        """(sequence, tokens) pairs -> Batch; logits of every row, or of each sequence's last."""
        ids, positions, slots, starts, lens, tables = [], [], [], [0], [], []
        for index, count in counts:
            begin = self.computed[index]
            place = np.arange(begin, begin + count)
            self.computed[index] += count
            ids += self.sequences[index][begin : begin + count]
            positions.append(place)
            slots.append(self.tables[index][place // self.block_size] * self.block_size + place % self.block_size)
            starts.append(starts[-1] + count)
            lens.append(begin + count)
            tables.append(self.tables[index])
        rows = range(starts[-1]) if every_row else [start - 1 for start in starts[1:]]
        return Batch(
            token_ids=np.array(ids, np.int64),
            positions=np.concatenate(positions).astype(np.int64),
            slots=np.concatenate(slots).astype(np.int64),
            block_tables=np.stack(tables),
            query_starts=np.array(starts, np.int32),
            context_lens=np.array(lens, np.int32),
            logits_rows=np.array(rows, np.int64),
        )


def write_gguf(path: Path, model: PreTrainedModel, kind: str, vocabulary: dict[str, Any]) -> None:
    """The model as llama.cpp's converter would write it; matrices as `kind`, the others in F32.

    What the file then says its matrices are is put into the model.
    """
    config = model.config
    name = {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
    _add_rope(writer, config)
    add_vocabulary(writer, vocabulary)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], config.num_hidden_layers)
    for parameter_name, parameter in model.named_parameters():
        gguf_name = names.get_name(parameter_name, try_suffixes=(".weight", ".bias"))
        heads = config.num_attention_heads if "q_proj" in parameter_name else config.num_key_value_heads
        turned = name == "llama" and ("q_proj" in parameter_name or "k_proj" in parameter_name)
        values = parameter.detach().numpy()
        values = interleave(values, heads) if turned else values
        quant = gguf.GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
        raw = quantise(values, quant)
        values = gguf.quants.dequantize(raw, quant).reshape(values.shape)
        parameter.data.copy_(torch.tensor(straighten(values, heads) if turned else values))
        writer.add_tensor(gguf_name, raw, raw_dtype=None if quant.name in ("F32", "F16") else quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantise(values: np.ndarray, quant: gguf.GGMLQuantizationType) -> np.ndarray:
    """Bytes of a tensor; of the K types, which the gguf package only reads, bytes at random with small scales."""
    if not quant.name.endswith("_K"):
        return gguf.quants.quantize(values, quant)
    weights, stored = gguf.GGML_QUANT_SIZES[quant]
    blocks = np.random.default_rng(values.size).integers(0, 256, (values.size // weights, stored), dtype=np.uint8)
    scales = [(208, 210)] if quant.name == "Q6_K" else [(0, 2), (2, 4)]
    for start, end in scales:
        blocks[:, start:end] = np.frombuffer(np.float16(3e-4).tobytes(), np.uint8)
    return blocks.reshape(*values.shape[:-1], -1)


def _add_rope(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    if rope["rope_type"] == "llama3":
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        plain = rope["rope_theta"] ** -(torch.arange(0, config.head_dim, 2).double() / config.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / scaled).float().numpy())


def add_vocabulary(writer: gguf.GGUFWriter, vocabulary: dict[str, Any]) -> None:
    writer.add_tokenizer_model(vocabulary.get("model", "gpt2"))
    writer.add_tokenizer_pre(vocabulary.get("pre", "smollm"))
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["types"])
    if "scores" in vocabulary:
        writer.add_token_scores(vocabulary["scores"])
    if "merges" in vocabulary:
        writer.add_token_merges(vocabulary["merges"])
    writer.add_eos_token_id(2)


def interleave(weights: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's `permute` of its Hugging Face converter: rotary halves to neighbours."""
    half = weights.shape[0] // heads // 2
    return weights.reshape(heads, 2, half, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def straighten(weights: np.ndarray, heads: int) -> np.ndarray:
    """The way back."""
    half = weights.shape[0] // heads // 2
    return weights.reshape(heads, half, 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def small_vocabulary(size: int = TINY["vocab_size"]) -> dict[str, Any]:
    """Three control tokens, then letters as they come: enough for a file that must load."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(0x21 + i) for i in range(94)), "th", "the"]
    tokens += [f"unused{i}" for i in range(size - len(tokens))]
    return {"tokens": tokens, "types": [3] * 3 + [1] * (size - 3), "merges": ["t h", "th e"]}


def save_tiny(folder: Path, family: str, **overrides: Any) -> PreTrainedModel:
    """A model and a tokenizer that fits it, saved as a folder that an engine loads."""
    model = tiny_model(family, **overrides)
    model.save_pretrained(folder)
    small = small_vocabulary(model.config.vocab_size)
    names = {"tokens": "tokens", "types": "token_type", "merges": "merges"}
    metadata = {f"tokenizer.ggml.{names[key]}": value for key, value in small.items()}
    write_tokenizer({**metadata, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.eos_token_id": 2}, folder, 128)
    return model
