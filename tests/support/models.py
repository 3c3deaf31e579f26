"""Small random Llamas, GGUF files made from them, and batches for them. The default model's folder, too."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from inference.execution.batch import Batch
from inference.execution.models.decoder_config import read_config
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
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**TINY, **overrides})).eval()


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


def write_gguf(path: Path, model: LlamaForCausalLM, kind: str, vocabulary: dict[str, Any]) -> None:
    """The model as llama.cpp's converter would write it; matrices as `kind`, norms in F32."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    add_vocabulary(writer, vocabulary)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if "q_proj" in name:
            values = interleave(values, config.num_attention_heads)
        elif "k_proj" in name:
            values = interleave(values, config.num_key_value_heads)
        quant = gguf.GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
        data = gguf.quants.quantize(values, quant)
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        raw = quant if quant.name not in ("F32", "F16") else None
        writer.add_tensor(gguf_name, data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer: gguf.GGUFWriter, vocabulary: dict[str, Any]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.get("pre", "smollm"))
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["types"])
    writer.add_token_merges(vocabulary["merges"])
    writer.add_eos_token_id(2)


def interleave(weights: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's `permute` of its Hugging Face converter: rotary halves to neighbours."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def small_vocabulary(size: int = TINY["vocab_size"]) -> dict[str, Any]:
    """Three control tokens, then letters as they come: enough for a file that must load."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(0x21 + i) for i in range(94)), "th", "the"]
    tokens += [f"unused{i}" for i in range(size - len(tokens))]
    return {"tokens": tokens, "types": [3] * 3 + [1] * (size - 3), "merges": ["t h", "th e"]}
