"""Models of transformers: what is refused, how long they may run, and the trial that keeps wrong ones out."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.foreign import VOCAB, edit_json, save_tiny
from support.models import PagedSequences
from transformers import AutoModelForCausalLM
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.utils import logging as transformers_logging

from inference.execution.models import foreign_attention
from inference.execution.models.errors import ModelError
from inference.execution.models.foreign import ForeignModel, load_foreign
from inference.execution.models.foreign_limits import model_len

CPU = torch.device("cpu")
IDS = [[17, 5, 200, 31, 8, 99, 4], [60, 3]]
NO_ROWS = np.zeros(0, np.int64)


def load(folder: Path, dtype: torch.dtype = torch.float32, max_model_len: int | None = None) -> ForeignModel:
    return load_foreign(folder, dtype, CPU, max_model_len)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny(tmp_path, "gpt_neox")
    return tmp_path


@torch.inference_mode()
def run(model: ForeignModel, every_row: bool = True) -> torch.Tensor:
    paged = PagedSequences(IDS, 4, 16)
    return model.forward(paged.batch([(0, 7), (1, 2)], every_row), model.new_cache(16, 4))


@pytest.mark.parametrize(
    ("kind", "overrides", "words"),
    [
        ("gemma2", {}, "a layer caps its attention scores"),
        ("gpt_oss", {"layer_types": ["full_attention"] * 3, "rope_parameters": None}, "a layer has attention sinks"),
        ("bert", {}, "a layer attends to later tokens as well"),
        ("lfm2", {"layer_types": ["conv", "full_attention", "conv"]}, "2 of 3 layers are of a kind that keeps"),
        ("mamba", {}, "they count positions by themselves"),
        ("bloom", {}, "they count positions by themselves"),
        ("xglm", {}, "no layer of theirs uses transformers' attention interface"),
        ("doge", {}, "called with a mask"),
    ],
)
def test_what_our_attention_can_not_do_is_refused(
    kind: str, overrides: dict[str, Any], words: str, tmp_path: Path
) -> None:
    save_tiny(tmp_path, kind, **overrides)
    with pytest.raises(ModelError, match=words) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"{kind} models can't be run here: ")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mystery", "auto_map": {"AutoModelForCausalLM": "x.Y"}}, "brings its own code"),
        ({"model_type": "mystery"}, "model_type is 'mystery', which this version of transformers does not know"),
        ({}, "model_type is None"),
        ({"model_type": "t5"}, "t5 models have an encoder"),
        ({"model_type": "vit"}, "vit models don't write text"),
        ({"model_type": "gemma3"}, "gemma3 models take more than text"),
        (
            {"model_type": "gpt2", "quantization_config": {"quant_method": "gptq"}},
            "quantised weights are not supported",
        ),
        ({"model_type": "gpt2", "n_head": "four"}, "transformers can't read .*config.json: .*n(um_attention)?_head"),
        ({"model_type": "gpt2"}, "holds neither model.safetensors nor"),
        ([], "must hold a JSON object"),
    ],
)
def test_a_folder_that_is_no_text_decoder_is_refused(config: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=words) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="holds pickled weights only"):
        load(folder)


def test_a_truncated_file_is_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelError, match="transformers can't load the model of") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_missing_tensors_are_not_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["gpt_neox.layers.1.mlp.dense_h_to_4h.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 tensors, such as gpt_neox\.layers\.1\.mlp\.dense_h_to_4h\.weight"):
        load(folder)


def test_folders_own_code_is_not_run_where_transformers_has_its_own(folder: Path) -> None:
    edit_json(folder / "config.json", auto_map={"AutoModelForCausalLM": "evil.Model"})
    (folder / "evil.py").write_text("raise SystemExit('the code was run')")
    assert load(folder).vocab_size == VOCAB


# The trial. Each mistake is one that an architecture might make; only the trial can tell.


def mixes_neighbours(patch: pytest.MonkeyPatch) -> None:
    """A token's state takes in the one before it in the batch, as a convolution does."""
    forward = modeling_gpt_neox.GPTNeoXMLP.forward
    patch.setattr(modeling_gpt_neox.GPTNeoXMLP, "forward", lambda self, x: forward(self, x + x.roll(1, 1)))


def counts_positions_by_itself(patch: pytest.MonkeyPatch) -> None:
    forward = modeling_gpt_neox.GPTNeoXRotaryEmbedding.forward

    def from_the_start(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return forward(self, x, torch.arange(x.shape[1])[None])

    patch.setattr(modeling_gpt_neox.GPTNeoXRotaryEmbedding, "forward", from_the_start)


def scales_otherwise(patch: pytest.MonkeyPatch) -> None:
    scale = foreign_attention._scale
    patch.setattr(foreign_attention, "_scale", lambda query, scaling: 1.1 * scale(query, scaling))


def writes_to_the_slot_before(patch: pytest.MonkeyPatch) -> None:
    write = foreign_attention.ops.write_kv

    def wrong(key: Any, value: Any, keys: Any, values: Any, slots: torch.Tensor) -> None:
        write(key, value, keys, values, (slots - 1).clamp_min(0))

    patch.setattr(foreign_attention.ops, "write_kv", wrong)


def gives_nan(patch: pytest.MonkeyPatch) -> None:
    attend = foreign_attention.ops.paged_attention
    patch.setattr(foreign_attention.ops, "paged_attention", lambda *arguments: attend(*arguments) * float("nan"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "mistake", [mixes_neighbours, counts_positions_by_itself, scales_otherwise, writes_to_the_slot_before, gives_nan]
)
def test_the_trial_finds_what_is_computed_wrongly(
    mistake: Any, dtype: torch.dtype, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(folder, dtype)
    mistake(monkeypatch)
    with pytest.raises(ModelError, match="this architecture can't be run right with paged attention"):
        load(folder, dtype)


def test_a_pass_that_leaves_out_a_layer_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(folder)
    first = modeling_gpt_neox.GPTNeoXLayer.forward

    def skip(self: Any, hidden: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        return hidden if self.attention.layer_idx == 1 else first(self, hidden, *arguments, **options)

    monkeypatch.setattr(modeling_gpt_neox.GPTNeoXLayer, "forward", skip)
    with pytest.raises(RuntimeError, match="called attention 2 times, not 3"):
        run(model)


# Lengths.


def test_windows_bound_the_length(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
    save_tiny(tmp_path, "gemma3_text", sliding_window=12, layer_types=layer_types)
    with pytest.raises(ModelError, match="max_model_len is 13, and the model can be run up to 12 positions: some of"):
        load(tmp_path, max_model_len=13)
    logger = logging.getLogger("batchscope.engine")
    monkeypatch.setattr(logger, "propagate", True)
    with caplog.at_level(logging.WARNING, logger.name):
        assert load(tmp_path).max_model_len == 12
    assert "max_model_len is 12 of the model's 256 positions" in caplog.text
    assert load(tmp_path, max_model_len=5).max_model_len == 5


def test_a_window_that_only_the_mask_knows_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.masking_utils import create_sliding_window_causal_mask

    monkeypatch.setattr(modeling_gpt_neox, "create_causal_mask", create_sliding_window_causal_mask)
    edit_json(folder / "config.json", sliding_window=9)
    assert load(folder).max_model_len == 9


def test_as_many_positions_as_the_model_was_made_for(folder: Path) -> None:
    assert (load(folder).max_model_len, load(folder, max_model_len=100).max_model_len) == (256, 100)
    with pytest.raises(ModelError, match="max_model_len is 257, and the model can be run up to 256 positions"):
        load(folder, max_model_len=257)


LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"rope_parameters": LONGROPE}, 64),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": LONGROPE}}, 64),
        ({"rope_parameters": {"rope_type": "longrope"}, "original_max_position_embeddings": 32}, 32),
        ({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 64}}, 512),
        ({"index_topk": 128}, 128),
        ({"attn_temperature_tuning": True, "floor_scale": 256}, 255),
        ({"attn_temperature_tuning": False, "floor_scale": 256}, 512),
    ],
)
def test_a_model_that_changes_with_length_is_run_up_to_there(settings: dict[str, Any], limit: int) -> None:
    config = SimpleNamespace(max_position_embeddings=512, **settings)
    assert model_len(config, [], None) == limit
    assert model_len(config, [], limit) == limit
    with pytest.raises(ModelError, match=f"can be run up to {limit} positions"):
        model_len(config, [], limit + 1)


def test_a_model_that_names_no_length_must_be_given_one() -> None:
    with pytest.raises(ModelError, match="set max_model_len"):
        model_len(SimpleNamespace(), [], None)
    assert model_len(SimpleNamespace(), [], 77) == 77


# What the engine reads.


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (7, None, {7}),
        (7, [8, 9], {7, 8, 9}),
        ([4, 5], None, {4, 5}),
        (7, 3, {3, 7}),
        (7, [True, -1, 10**6, 8], {7, 8}),
        (None, None, set()),
    ],
)
def test_eos(config: Any, generation: Any, expected: set[int], folder: Path) -> None:
    edit_json(folder / "config.json", eos_token_id=config)
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    assert load(folder).eos_token_ids == expected


def test_the_cache_is_as_wide_as_each_layer_needs(tmp_path: Path) -> None:
    save_tiny(tmp_path, "deepseek_v3", head_dim=8, num_key_value_heads=4)  # keys of 24 dims, values of 12
    model = load(tmp_path, torch.bfloat16)
    cache = model.new_cache(6, 8)
    assert [(k.shape, v.shape) for k, v in cache.layers] == [((6, 4, 24, 8), (6, 4, 8, 24))] * 3
    total = sum(x.numel() * x.itemsize for layer in cache.layers for x in layer)
    assert model.kv_bytes_per_block(8) * 6 == total


def test_only_wanted_rows_are_given(folder: Path) -> None:
    model = load(folder)
    torch.testing.assert_close(run(model, every_row=False), run(model)[[6, 8]], atol=1e-5, rtol=1e-5)


def test_a_chunk_that_wants_no_logits(folder: Path) -> None:
    model = load(folder)
    paged = PagedSequences(IDS, 4, 16)
    cache = model.new_cache(16, 4)
    batch = replace(paged.batch([(0, 5)]), logits_rows=NO_ROWS)
    with torch.inference_mode():
        assert model.forward(batch, cache).shape == (0, VOCAB)
        later = model.forward(paged.batch([(0, 2), (1, 2)]), cache)
    torch.testing.assert_close(later, run(model)[5:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["olmo2", "phi", "gpt_neox", "gpt2", "stablelm"])
def test_bfloat16(kind: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, kind)
    logits = run(load(tmp_path, torch.bfloat16))
    peer = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = torch.cat([peer(torch.tensor([ids])).logits[0] for ids in IDS])
    assert logits.dtype == torch.float32
    assert float((logits - expected).std() / expected.std()) < 0.05
    best = logits.gather(1, logits.topk(4).indices)
    exact = bool((best != best.bfloat16().float()).any())
    assert exact == (kind != "phi"), "the best logits are computed in float32 where the head has no bias"


def test_packed_weights_are_held_once(folder: Path) -> None:
    weights = load(folder, torch.bfloat16)._model.state_dict()
    assert weights["gpt_neox.layers.1.mlp.dense_h_to_4h.weight"].numel() == 0
    assert weights["gpt_neox.layers.1.mlp.dense_h_to_4h.bias"].numel() == 96
    assert weights["lm_head.weight"].shape == (VOCAB, 64)


def test_loading_says_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    capfd.readouterr()
    run(load(folder))
    assert capfd.readouterr() == ("", "")
    assert (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()) == before
