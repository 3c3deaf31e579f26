"""The native family through the whole engine: greedy answers are those of transformers' generate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import save_tiny

from inference.config import EngineConfig, SamplingParams
from inference.engine import Engine

FAMILIES = {
    "Llama": {"attention_bias": True},
    "Mistral": {"sliding_window": 96, "max_position_embeddings": 256},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 24},
}
ANSWER = 24


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 5, None])
def test_greedy_answers_equal_generate(family: str, chunk: int | None, tmp_path: Path) -> None:
    peer = save_tiny(tmp_path, family, **FAMILIES[family])
    rng = np.random.default_rng(4)
    prompts = [rng.integers(0, 199, length).tolist() for length in (1, 9, 30, 64, 4)]
    engine = Engine(
        EngineConfig(
            model=str(tmp_path), device="cpu", dtype="float32", block_size=4, max_num_seqs=3, prefill_chunk=chunk
        )
    )
    outputs = engine.generate(prompts, SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert list(output.token_ids) == generate(peer, prompt)


@torch.inference_mode()
def generate(peer: torch.nn.Module, prompt: list[int], **settings: object) -> list[int]:
    answer = peer.generate(  # type: ignore[operator]
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=ANSWER,
        do_sample=False,
        **{"eos_token_id": None, "pad_token_id": 0, **settings},
    )
    return answer[0, len(prompt) :].tolist()


def test_any_of_several_end_ids_ends_an_answer(tmp_path: Path) -> None:
    peer = save_tiny(tmp_path, "Llama")
    prompt = [7, 8, 9]
    whole = generate(peer, prompt)
    early, late = whole[4], whole[9]
    assert early not in whole[:4]
    peer.config.eos_token_id = [198, late]
    peer.generation_config.eos_token_id = [197, early]
    peer.config.save_pretrained(tmp_path)
    peer.generation_config.save_pretrained(tmp_path)
    engine = Engine(EngineConfig(model=str(tmp_path), device="cpu", dtype="float32"))
    output = engine.generate([prompt], SamplingParams(max_tokens=ANSWER, temperature=0.0))[0]
    assert (output.finish_reason, list(output.token_ids)[:4]) == ("stop", whole[:4])
    assert generate(peer, prompt, eos_token_id=[198, late, 197, early])[:4] == whole[:4]
    peer.generation_config.eos_token_id = 197
    peer.generation_config.save_pretrained(tmp_path)
    engine = Engine(EngineConfig(model=str(tmp_path), device="cpu", dtype="float32"))
    output = engine.generate([prompt], SamplingParams(max_tokens=ANSWER, temperature=0.0))[0]
    assert list(output.token_ids)[: whole.index(late)] == whole[: whole.index(late)]
    assert output.finish_reason == "stop"


def test_ids_beyond_the_tokenizer_are_no_text_and_harm_nothing(tmp_path: Path) -> None:
    """Models are often wider than their tokenizers, to a round number; with random weights such ids are drawn."""
    model = save_tiny(tmp_path, "Qwen2")
    narrow = tmp_path / "narrow"
    save_tiny(narrow, "Qwen2", vocab_size=120)
    (tmp_path / "tokenizer.json").write_bytes((narrow / "tokenizer.json").read_bytes())
    engine = Engine(EngineConfig(model=str(tmp_path), device="cpu", dtype="float32"))
    assert engine.tokenizer.vocab_size == 120 < model.config.vocab_size
    output = engine.generate([[5, 6]], SamplingParams(max_tokens=40, temperature=2.0, seed=1, ignore_eos=True))[0]
    assert len(output.token_ids) == 40
    assert max(output.token_ids) >= 120
    assert output.text == engine.tokenizer.decode([i for i in output.token_ids if i < 120])


def test_a_tokenizer_wider_than_its_model_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama", vocab_size=150)
    wide = tmp_path / "wide"
    save_tiny(wide, "Llama", vocab_size=160)
    (tmp_path / "tokenizer.json").write_bytes((wide / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match="has ids up to 159, and its model has 150 ids"):
        Engine(EngineConfig(model=str(tmp_path), device="cpu", dtype="float32"))


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, r"no tokenizer\.json"), ("{", "can't be read as JSON"), ('{"model": 1}', "can't be used")],
)
def test_a_tokenizer_that_is_missing_or_broken(content: str | None, words: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    (tmp_path / "tokenizer.json").unlink()
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=words) as refused:
        Engine(EngineConfig(model=str(tmp_path), device="cpu", dtype="float32"))
    assert "\n" not in str(refused.value)
