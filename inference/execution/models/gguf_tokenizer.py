"""Tokenizer files from a GGUF file's vocabulary, so that ids equal those of the model's own tokenizer.

Knows: GGUF's `tokenizer.*` metadata, and which split of the text a `tokenizer.ggml.pre` name stands for (llama.cpp
keeps only the name). Must not know: weights, torch, how prompts are built.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from inference.execution.models.errors import ModelError

CONTROL, USER_DEFINED = 3, 4  # of `tokenizer.ggml.token_type`
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits_first() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _split(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def make() -> pre_tokenizers.PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return make


SPLITS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _byte_level,
    "gpt-2": _byte_level,
    "smollm": _digits_first,
    "llama-bpe": _split(LLAMA3_SPLIT),
    "qwen2": _split(QWEN2_SPLIT),
}


def write_tokenizer(metadata: Mapping[str, Any], folder: Path, max_model_len: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, as transformers and tokenizers read them.

    `metadata` maps GGUF keys to plain values. Raises ModelError for a kind of tokenizer that is not known.
    """
    kind, split = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise ModelError(f"GGUF tokenizers of kind {kind!r} are not supported; byte-level BPE ('gpt2') is.")
    if split not in SPLITS:
        raise ModelError(f"the GGUF's text split {split!r} is not supported; there are: {', '.join(SPLITS)}.")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split == "llama-bpe"))
    tokenizer.pre_tokenizer = SPLITS[split]()
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type", [])
    tokenizer.add_special_tokens([_added(t, True) for t, k in zip(tokens, types, strict=False) if k == CONTROL])
    tokenizer.add_tokens([_added(t, False) for t, k in zip(tokens, types, strict=False) if k == USER_DEFINED])
    named = {role: _token(metadata, key) for role, key in NAMED.items()}
    if metadata.get("tokenizer.ggml.add_bos_token") and named["bos_token"]:
        bos = named["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, vocabulary[bos])]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_model_len,
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata.get("tokenizer.chat_template"),
        **named,
    }
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(kept, indent=2, ensure_ascii=False), encoding="utf-8")


NAMED = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def end_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Ids that end an answer: end of text, of a turn, of a message. In order, each once."""
    keys = ("eos", "eot", "eom")
    found = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys)
    return list(dict.fromkeys(int(i) for i in found if i is not None))


def _token(metadata: Mapping[str, Any], key: str) -> str | None:
    index = metadata.get(key)
    tokens = metadata["tokenizer.ggml.tokens"]
    return tokens[index] if index is not None and 0 <= index < len(tokens) else None


def _added(token: str, special: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False)
