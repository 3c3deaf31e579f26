"""Tokenizers from GGUF metadata: SentencePiece's against sentencepiece, byte-level ones against transformers'."""

from __future__ import annotations

import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Made
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

from inference.execution.models.errors import ModelError
from inference.execution.models.gguf_tokenizer import write_tokenizer
from inference.text.tokenizer import Tokenizer, load_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. What is the capital of France? The capital is Paris.",
    "def main():\n    print('hello, world')\n\n    return 0  # 2**10 == 1024\n",
    "It's 12:34, isn't it? We'll see; they've 1,000,000.5 reasons; aaaa bbbb ==== ----",
    "삼겹살 ďábel 你好，世界 пример текста naïve café",
] * 3
PARTS = [
    *"abcdeXYZ0189 \t\n'\".,;:!?-_<>|=()[]",
    *(
        "  ",
        "    ",
        "the",
        "is",
        "'ll",
        "é",
        "e\u0301",
        "½",
        "Ж",
        "中文",
        "한",
        "👋",
        "\u2581",
        "\u00a0",
        "<s>",
        "<0x41>",
    ),
]
WANTED = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}


def random_texts(count: int) -> list[str]:
    rng = random.Random(5)
    mixed = ["".join(rng.choices(PARTS, k=rng.randrange(40))) for _ in range(count)]
    runs = [rng.choice(" ea=-_") * rng.randrange(1, 40) + rng.choice(PARTS) for _ in range(count // 4)]
    return ["", " ", *CORPUS, *mixed, *runs]


@cache
def trained(**settings: Any) -> sentencepiece.SentencePieceProcessor:
    """As Llama's: nothing normalised, unknown characters as bytes, a space put in front."""
    out = io.BytesIO()
    chosen = {"vocab_size": 420, "byte_fallback": True, "split_digits": True, "allow_whitespace_only_pieces": True}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=out,
        model_type="bpe",
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<|tool|>"],
        minloglevel=2,
        **{**chosen, **settings},
    )
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def metadata_of(peer: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    ids = range(peer.get_piece_size())
    tests = [(peer.is_unknown, 2), (peer.is_control, 3), (peer.is_unused, 5), (peer.is_byte, 6)]
    kinds = [next((kind for test, kind in tests if test(i)), 1) for i in ids]
    tokens = [peer.id_to_piece(i) for i in ids]
    kinds[tokens.index("<|tool|>")] = 4
    scores = [peer.get_score(i) for i in ids]
    return {
        **WANTED,
        **{
            f"tokenizer.ggml.{key}": value
            for key, value in {"tokens": tokens, "scores": scores, "token_type": kinds}.items()
        },
    }


def loaded(folder: Path, metadata: dict[str, Any]) -> Tokenizer:
    write_tokenizer(metadata, folder, 128)
    return load_tokenizer(folder)


@pytest.mark.parametrize(
    "settings", [{}, {"add_dummy_prefix": False}, {"byte_fallback": False, "vocab_size": 180}, {"split_digits": False}]
)
def test_sentencepiece_ids_and_texts_are_its_own(settings: dict, tmp_path: Path) -> None:
    peer = trained(**settings)
    prefix = settings.get("add_dummy_prefix", True)
    tokenizer = loaded(tmp_path, metadata_of(peer) | {"tokenizer.ggml.add_space_prefix": prefix})
    for text in random_texts(300):
        ids = tokenizer.encode_text(text, add_special_tokens=False)
        assert ids == peer.encode(text), text
        if settings.get("byte_fallback", True):
            assert tokenizer.decode(ids) == peer.decode(ids) == text.replace("\u2581", " ")


@pytest.mark.parametrize(
    ("flags", "before", "after"),
    [
        ({}, [1], []),
        ({"add_bos_token": True, "add_eos_token": True}, [1], [2]),
        ({"add_bos_token": False}, [], []),
        ({"bos_token_id": None}, [], []),
        ({"bos_token_id": 10**6}, [], []),
    ],
)
def test_bos_and_eos_stand_where_the_file_says(flags: dict, before: list, after: list, tmp_path: Path) -> None:
    metadata = metadata_of(trained()) | {f"tokenizer.ggml.{key}": value for key, value in flags.items()}
    tokenizer = loaded(tmp_path, metadata)
    assert tokenizer.encode_text("The fox") == [*before, *trained().encode("The fox"), *after]
    assert tokenizer.eos_token_ids == {2}
    assert {0, 1, 2} == tokenizer.special_ids
    assert trained().piece_to_id("<|tool|>") in tokenizer.control_ids


def byte_level(normalizer: Any, split: str | None, ignore_merges: bool = False) -> Made:
    made = Made(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        made.normalizer = normalizer
    steps = [pre_tokenizers.Split(Regex(split), "isolated")] if split else [pre_tokenizers.Digits(True)]
    made.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(False, use_regex=split is None)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    return made


def vocabulary_of(made: Made) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model = json.loads(made.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def gguf_metadata(pre: str, vocab: dict[str, int], merges: list[tuple[str, str]]) -> dict[str, Any]:
    tokens = sorted(vocab, key=vocab.__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
    }


@pytest.mark.parametrize("pre", ["qwen2", "deepseek-r1-qwen"])
def test_qwen2_ids_are_those_of_transformers_class(pre: str, tmp_path: Path) -> None:
    vocab, merges = vocabulary_of(byte_level(normalizers.NFC(), LLAMA3))
    peer = Qwen2Tokenizer(vocab=vocab, merges=merges)
    tokenizer = loaded(tmp_path, gguf_metadata(pre, vocab, merges))
    for text in random_texts(200):
        assert tokenizer.encode_text(text) == peer(text, split_special_tokens=True)["input_ids"], text


@pytest.mark.parametrize("pre", ["llama-bpe", "llama3", "llama-v3", "smollm", "starcoder", "refact"])
def test_other_splits(pre: str, tmp_path: Path) -> None:
    is_llama = pre.startswith("llama")
    made = byte_level(None, LLAMA3 if is_llama else None, ignore_merges=is_llama)
    peer = PreTrainedTokenizerFast(tokenizer_object=made)
    tokenizer = loaded(tmp_path, gguf_metadata(pre, *vocabulary_of(made)))
    for text in random_texts(200):
        assert tokenizer.encode_text(text) == peer(text)["input_ids"], text


def test_without_bos_pad_or_template(tmp_path: Path) -> None:
    made = byte_level(None, LLAMA3)
    tokenizer = loaded(tmp_path, gguf_metadata("llama-bpe", *vocabulary_of(made)))
    assert tokenizer.eos_token_ids == tokenizer.special_ids == frozenset()
    ids = tokenizer.encode_text("The fox")
    assert tokenizer.decode(ids) == "The fox"
    assert tokenizer.chat_headers is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "bert"}, "tokenizers of kind 'bert' are not supported"),
        ({"model": None}, "kind None"),
        ({"pre": "chameleon"}, "text split 'chameleon' is not supported; there are: default, gpt-2, smollm"),
        ({"tokens": None}, "holds no vocabulary"),
        ({"tokens": []}, "holds no vocabulary"),
        ({"merges": None}, "holds no merges"),
        ({"merges": ["a b", "zz zzz"]}, "don't make a tokenizer"),
        ({"merges": ["ab"]}, "don't make a tokenizer"),
        ({"model": "llama"}, "lacks a score and a kind for each piece"),
        ({"model": "llama", "scores": [0.0]}, "lacks a score and a kind for each piece"),
    ],
)
def test_what_is_refused(changes: dict, words: str, tmp_path: Path) -> None:
    metadata = gguf_metadata("llama-bpe", {"a": 0, "b": 1, "ab": 2}, [("a", "b")])
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(ModelError, match=words) as refused:
        write_tokenizer({key: value for key, value in metadata.items() if value is not None}, tmp_path, 128)
    assert "\n" not in str(refused.value)
