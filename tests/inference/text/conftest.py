"""Small tokenizers of the kinds that there are, made here, and the default model's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from inference.execution.models.prepare import prepare_model
from inference.text.tokenizer import Tokenizer, load_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. What is the capital of France? The capital is Paris.",
    "user assistant system start end im think tool call one two three STOP DEF GHIJ",
    "def main():\n    print('hello, world')\n\n    return 0\n",
    "삼겹살 ďábel 你好，世界 пример текста",
] * 4
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BRACKETS = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] | trim + eos_token }}{% else %}{{ raise_exception('Only user and assistant roles') }}"
    "{% endif %}{% endfor %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NOT_MARKED_SPECIAL = ("<think>", "</think>", "<tool_call>", "<|fim|>")


def byte_level_bpe() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=480, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.add_tokens([AddedToken(token, normalized=False) for token in NOT_MARKED_SPECIAL])
    made.add_tokens([AddedToken("    ", normalized=False), AddedToken("two words", normalized=False)])
    return made


def sentencepiece_bpe() -> tokenizers.Tokenizer:
    """As Llama 2's: spaces are '▁', one is put in front, unknown characters fall back to byte tokens."""
    trained = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    control = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=560, special_tokens=control + byte_tokens, show_progress=False)
    trained.train_from_iterator(["▁".join(line.split(" ")) for line in CORPUS[:3]], trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    made = tokenizers.Tokenizer(
        models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def metaspace_unigram() -> tokenizers.Tokenizer:
    """As T5's; its control tokens are pieces of the vocabulary, and a Unigram model finds any piece in a text."""
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>", "<extra>"], show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


KINDS: dict[str, tuple[Callable[[], tokenizers.Tokenizer], dict[str, Any]]] = {
    "byte_level": (byte_level_bpe, {"eos_token": "<|im_end|>", "chat_template": CHATML}),
    "sentencepiece": (
        sentencepiece_bpe,
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": BRACKETS},
    ),
    "metaspace": (
        metaspace_unigram,
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": BRACKETS},
    ),
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tokenizer folders by kind, the default model's among them."""
    made = {"default": prepare_model("smollm2")}
    for kind, (make, config) in KINDS.items():
        made[kind] = tmp_path_factory.mktemp(kind)
        make().save(str(made[kind] / "tokenizer.json"))
        full = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
        (made[kind] / "tokenizer_config.json").write_text(json.dumps(full))
    return made


@pytest.fixture(scope="session")
def loaded(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {kind: load_tokenizer(folder) for kind, folder in folders.items()}


@pytest.fixture(scope="session", params=["default", "byte_level", "sentencepiece", "metaspace"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def tokenizer(loaded: dict[str, Tokenizer], kind: str) -> Tokenizer:
    return loaded[kind]
