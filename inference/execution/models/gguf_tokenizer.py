"""Tokenizer files from a GGUF file's vocabulary, so that ids equal those of the model's own tokenizer.

Knows: GGUF's `tokenizer.*` metadata, and which split of the text a `tokenizer.ggml.pre` name stands for (llama.cpp
keeps only the name). Must not know: weights, torch, how prompts are built. Two kinds: byte-level BPE ("gpt2"), and
SentencePiece's BPE ("llama", see gguf_sentencepiece.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from inference.execution.models.errors import ModelError
from inference.execution.models.gguf_sentencepiece import sentencepiece_tokenizer

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # of `tokenizer.ggml.token_type`
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


class Splitting(NamedTuple):
    """How a text becomes words. whole_words: a word that is a token is not taken apart.  composed: NFC comes first."""

    words: Callable[[], pre_tokenizers.PreTokenizer]
    whole_words: bool = False
    composed: bool = False


_GPT2, _SMOLLM = Splitting(_byte_level), Splitting(_digits_first)
_LLAMA3 = Splitting(_split(LLAMA3_SPLIT), whole_words=True)
_QWEN2 = Splitting(_split(QWEN2_SPLIT), composed=True)
SPLITS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
NAMED = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def write_tokenizer(metadata: Mapping[str, Any], folder: Path, max_model_len: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, as transformers and tokenizers read them.

    `metadata` maps GGUF keys to plain values. Raises ModelError for a kind of tokenizer that is not known, and for a
    vocabulary that is not one.
    """
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if kind not in ("gpt2", "llama"):
        raise ModelError(
            f"GGUF tokenizers of kind {kind!r} are not supported; byte-level BPE ('gpt2') and SentencePiece's BPE "
            "('llama') are."
        )
    if not isinstance(tokens, list) or not tokens:
        raise ModelError("the GGUF file holds no vocabulary (tokenizer.ggml.tokens).")
    tokenizer = sentencepiece_tokenizer(metadata) if kind == "llama" else _byte_level_bpe(metadata, tokens)
    types = metadata.get("tokenizer.ggml.token_type", [])
    kinds = list(zip(tokens, types, strict=False))
    tokenizer.add_special_tokens([_added(token, True) for token, k in kinds if k in (UNKNOWN, CONTROL)])
    tokenizer.add_tokens([_added(token, False) for token, k in kinds if k == USER_DEFINED])
    named = {role: _token(metadata, key) for role, key in NAMED.items()}
    _add_ends(tokenizer, metadata, named)
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


def _byte_level_bpe(metadata: Mapping[str, Any], tokens: list[str]) -> Tokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in SPLITS:
        raise ModelError(f"the GGUF's text split {name!r} is not supported; there are: {', '.join(SPLITS)}.")
    if not isinstance(written := metadata.get("tokenizer.ggml.merges"), list):
        raise ModelError("the GGUF file holds no merges (tokenizer.ggml.merges), which its kind of tokenizer needs.")
    split = SPLITS[name]
    merges = [tuple(merge.split(" ", 1)) for merge in written]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split.whole_words))
    except Exception as error:  # tokenizers raises bare ones: a merge of what is no token, for instance
        reason = str(error).splitlines()[0].rstrip(".:")
        raise ModelError(f"the GGUF's vocabulary and merges don't make a tokenizer: {reason}.") from error
    if split.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split.words()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_ends(tokenizer: Tokenizer, metadata: Mapping[str, Any], named: Mapping[str, str | None]) -> None:
    """BOS before each text and EOS after it, where the file says so; SentencePiece's has a BOS unless it says no."""
    spm = metadata.get("tokenizer.ggml.model") == "llama"
    bos = named["bos_token"] if metadata.get("tokenizer.ggml.add_bos_token", spm) else None
    eos = named["eos_token"] if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    if bos or eos:
        one = [part for part in (bos, "$A", eos) if part]
        ends = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token]
        two = [part for part in (bos, "$A", eos, bos, "$B", eos) if part]
        tokenizer.post_processor = processors.TemplateProcessing(single=one, pair=two, special_tokens=ends)


def end_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Ids that end an answer: end of text, of a turn, of a message. In order, each once."""
    keys = ("eos", "eot", "eom")
    found = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys)
    return list(dict.fromkeys(i for i in found if isinstance(i, int)))


def _token(metadata: Mapping[str, Any], key: str) -> str | None:
    index = metadata.get(key)
    tokens = metadata["tokenizer.ggml.tokens"]
    return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else None


def _added(token: str, special: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False)
