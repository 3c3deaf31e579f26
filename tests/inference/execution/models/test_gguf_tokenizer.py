"""The default model's tokenizer files, made from its GGUF: ids equal those of a tokenizer written here, plainly."""

from __future__ import annotations

import json
import random
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from gguf import GGUFReader
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from inference.execution.models.fetch import fetch_default_model
from inference.execution.models.store import default_cache

TEXTS = [
    "The quick brown fox jumps over the lazy dog. It's 12:34, isn't it? We'll see; they've 1,000,000.5 reasons.",
    "naïve café, Ünïcödé, ďábel, Здравствуй мир, Ελληνικά, שלום עולם, مرحبا بالعالم, नमस्ते, ไทย",
    "你好，世界！日本語のテキスト、삼겹살 👋 👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \u200b\u00a0\u3000end",
    "def f(x: int) -> int:\n\tif x <= 1:\n\t\treturn 1\n    return x * f(x - 1)  # 2**10 == 1024\r\n\r\n\n\n",
    "   leading, trailing   \n \t mixed  \n\n  spaces   ",
    "x² + ½ = ٣ and Ⅷ and 2024-01-31T23:59:59Z v1.2.3-rc4",
    "<div class='a'>&amp;</div> https://example.org/?q=1&r=%20 {\"k\": [1, 2.5e-3, null]}",
    "'S 'T 'RE I'M I'm don'T \x00\x01\x7f \ufeff\ufffd",
    "",
    " ",
]


@pytest.fixture(scope="module")
def ours(default_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(default_folder / "tokenizer.json"))


@cache
def vocabulary() -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    fields = GGUFReader(fetch_default_model(default_cache())).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()
    return {t: i for i, t in enumerate(tokens)}, {tuple(m.split(" ")): i for i, m in enumerate(merges)}


@cache
def byte_letters() -> dict[int, str]:
    """GPT-2's printable stand-ins for bytes (Radford et al. 2019)."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {b: chr(b) for b in kept}
    rest = [b for b in range(256) if b not in letters]
    return letters | {b: chr(0x100 + i) for i, b in enumerate(rest)}


def plain_bpe(text: str) -> list[int]:
    """Digits one by one, then GPT-2's split, then merges in order of rank."""
    ids, ranks = vocabulary()
    pattern = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    result = []
    for part in regex.findall(r"\p{N}|\P{N}+", text):
        for word in pattern.findall(part):
            pieces = [byte_letters()[b] for b in word.encode()]
            while pairs := [p for p in pairwise(pieces) if p in ranks]:
                best = min(pairs, key=ranks.__getitem__)
                pieces = merge(pieces, best)
            result += [ids[piece] for piece in pieces]
    return result


def merge(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    merged, i = [], 0
    while i < len(pieces):
        if tuple(pieces[i : i + 2]) == pair:
            merged.append(pieces[i] + pieces[i + 1])
            i += 2
        else:
            merged.append(pieces[i])
            i += 1
    return merged


def random_texts(count: int) -> list[str]:
    rng = random.Random(3)
    alphabet = [
        *"abcdeXYZ0189 \t\n'\".,;:!?-_<>|=()[]",
        "é",
        "ß",
        "Ж",
        "中",
        "文",
        "한",
        "👋",
        "\u0301",
        "  ",
        "'ll",
        "½",
    ]
    return ["".join(rng.choices(alphabet, k=rng.randrange(1, 60))) for _ in range(count)]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_ids_equal_plain_bpe(text: str, ours: Tokenizer) -> None:
    ids = ours.encode(text).ids
    assert ids == plain_bpe(text)
    assert ours.decode(ids) == text


def test_ids_of_random_texts_equal_plain_bpe(ours: Tokenizer) -> None:
    for text in random_texts(300):
        assert ours.encode(text).ids == plain_bpe(text), text


def test_ids_equal_the_published_ones(ours: Tokenizer) -> None:
    """The ids that the model's authors' tokenizer gives for its default system message."""
    text = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    published = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712]
    assert ours.encode(text).ids == [*published, 8182, 2, 198]


def test_control_tokens_are_special_and_hidden(ours: Tokenizer) -> None:
    added = ours.get_added_tokens_decoder()
    assert sorted(added) == list(range(17))
    assert all(token.special for token in added.values())
    assert ours.decode([1, 9690, 2], skip_special_tokens=True) == "system"


def test_transformers_reads_the_folder_with_the_same_ids_and_template(default_folder: Path, ours: Tokenizer) -> None:
    peer = AutoTokenizer.from_pretrained(default_folder)
    for text in TEXTS:
        assert peer(text).input_ids == ours.encode(text).ids
    assert (peer.eos_token_id, peer.bos_token_id, peer.pad_token_id) == (2, 1, 2)
    chat = [{"role": "user", "content": "hi"}]
    rendered = peer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert rendered.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert peer.model_max_length == json.loads((default_folder / "config.json").read_text())["max_position_embeddings"]
