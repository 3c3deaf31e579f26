"""GGUF files: what their bytes mean, what the converted folder is, what is refused."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from support.models import (
    PagedSequences,
    load_llama,
    quantise,
    small_vocabulary,
    tiny_llama,
    tiny_model,
    write_gguf,
)
from transformers import AutoModelForCausalLM

from inference.execution.models import quants
from inference.execution.models.errors import ModelError
from inference.execution.models.gguf import convert_gguf
from inference.execution.runner import ModelRunner

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
K_KINDS = ("Q4_K", "Q5_K", "Q6_K")
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MODELS: dict[str, tuple[str, str, dict]] = {
    **{f"tied, {kind}": ("Llama", kind, {"tie_word_embeddings": True}) for kind in KINDS},
    **{f"untied, {kind}": ("Llama", kind, {"rope_theta": 20000.0}) for kind in KINDS},
    **{k: ("Llama", k, {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}) for k in K_KINDS},
    "biases": ("Llama", "BF16", {"attention_bias": True, "mlp_bias": True}),
    "llama3 scaling": ("Llama", "F32", {"rope_parameters": LLAMA3}),
    "linear scaling": (
        "Llama",
        "F16",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "mistral": ("Mistral", "Q8_0", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("Qwen2", "F16", {}),
    "qwen2, tied": ("Qwen2", "Q4_0", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", "Q5_1", {"head_dim": 32}),
    "qwen3, tied, biases": ("Qwen3", "Q8_0", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("kind", [*KINDS, *K_KINDS])
def test_dequantised_values_equal_those_of_the_gguf_package(kind: str) -> None:
    weights = np.random.default_rng(0).normal(0, 3, (7, 512)).astype(np.float32)
    quant = gguf.GGMLQuantizationType[kind]
    raw = quantise(weights, quant)
    ours = quants.dequantise(raw, kind, weights.shape)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, gguf.quants.dequantize(raw, quant))
    assert len(np.unique(ours)) > 100
    if kind in KINDS:
        assert np.abs(ours - weights).max() < {"Q4": 1.5, "Q5": 0.8}.get(kind[:2], 0.1)


@pytest.mark.parametrize("kind", ["Q2_K", "IQ2_XS", "TQ1_0", "MXFP4"])
def test_other_types_are_refused_by_name(kind: str) -> None:
    with pytest.raises(ModelError, match=f"type {kind} are not supported; there are: F32, F16"):
        quants.dequantise(np.zeros(64, np.uint8), kind, (32,))


def test_bytes_that_do_not_fit_the_shape_are_refused() -> None:
    with pytest.raises(ModelError, match="32 weights of type Q4_0 can't lie in 17 bytes"):
        quants.dequantise(np.zeros(17, np.uint8), "Q4_0", (32,))


@pytest.mark.parametrize("name", MODELS)
def test_converted_folder_is_the_dequantised_model(name: str, tmp_path: Path) -> None:
    """Ours on the folder = transformers on the folder = transformers with gguf's own dequantised values."""
    family, kind, changes = MODELS[name]
    model = tiny_model(family, **changes)
    write_gguf(tmp_path / "tiny.gguf", model, kind, small_vocabulary())
    folder = convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache", lambda line: None)
    ids = np.random.default_rng(2).integers(0, 199, 40).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(loaded, expected, atol=1e-5, rtol=1e-5)
    ours = load_llama(folder)
    logits = ModelRunner(ours, ours.new_cache(16, 8)).execute(PagedSequences([ids], 8, 16).batch([(0, 40)]))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert ours.eos_token_ids == {2}


def test_a_second_call_does_nothing_and_another_file_is_another_folder(tmp_path: Path) -> None:
    lines: list[str] = []
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_llama(), "F32", small_vocabulary())
    first = convert_gguf(path, tmp_path / "cache", lines.append)
    said = len(lines)
    assert said
    assert convert_gguf(path, tmp_path / "cache", lines.append) == first
    assert len(lines) == said
    write_gguf(path, tiny_llama(), "F16", small_vocabulary())
    assert convert_gguf(path, tmp_path / "cache", lines.append) != first


def test_converting_at_the_same_time_makes_one_whole_folder(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_llama(), "F32", small_vocabulary())
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(convert_gguf(path, tmp_path / "cache", lambda line: None)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 4
    assert len(set(folders)) == 1
    load_llama(folders[0])
    assert not list((tmp_path / "cache").glob("*.part"))


def test_what_a_killed_conversion_left_is_not_taken_for_a_model(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_llama(), "F32", small_vocabulary())
    target = convert_gguf(path, tmp_path / "cache", lambda line: None)
    stale = target.parent / f".{target.name}.killed.part"
    target.rename(stale)
    assert convert_gguf(path, tmp_path / "cache", lambda line: None) == target
    assert (target / "model.safetensors").is_file()
    assert not stale.exists()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 40, b"GGUF\x03\0\0\0" + b"\xff" * 64])
def test_broken_files_get_one_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"broken\.gguf"):
        convert_gguf(path, tmp_path / "cache", lambda line: None)
    assert not [p for p in (tmp_path / "cache").iterdir() if not p.name.endswith(".lock")]


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    write_gguf(path, tiny_llama(), "F32", small_vocabulary())
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelError, match=r"short\.gguf"):
        convert_gguf(path, tmp_path / "cache", lambda line: None)


@pytest.mark.parametrize(
    ("architecture", "vocabulary", "words"),
    [
        ("qwen2moe", {}, "qwen2moe"),
        ("llama", {"pre": "tekken"}, "tekken"),
    ],
)
def test_unknown_kinds_are_refused_by_name(architecture: str, vocabulary: dict, words: str, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    write_gguf(path, tiny_llama(), "F32", {**small_vocabulary(), **vocabulary})
    path.write_bytes(rename_architecture(path.read_bytes(), architecture))
    with pytest.raises(ModelError, match=words):
        convert_gguf(path, tmp_path / "cache", lambda line: None)


def rename_architecture(content: bytes, name: str) -> bytes:
    old = b"general.architecture" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"llama"
    assert old in content
    new = b"general.architecture" + (8).to_bytes(4, "little") + len(name).to_bytes(8, "little") + name.encode()
    return content.replace(old, new, 1)


def test_default_model_is_the_published_shape(default_folder: Path) -> None:
    config = json.loads((default_folder / "config.json").read_text())
    expected = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    expected |= {"vocab_size": 49152, "rope_theta": 100000.0, "rms_norm_eps": 1e-05, "tie_word_embeddings": True}
    assert {key: config[key] for key in expected} == expected
