"""From settings to a model: device, dtype, limits, and what is refused with a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.models import tiny_llama

from inference.config import EngineConfig
from inference.execution.cache import num_kv_blocks
from inference.execution.models import loader
from inference.execution.models.errors import ModelError
from inference.execution.models.loader import cpu_flags, load_model
from inference.execution.models.prepare import model_name
from inference.execution.runner import ModelRunner, _quota, compute_threads


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_llama().save_pretrained(tmp_path)
    return tmp_path


def edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load(folder: Path, **settings: object) -> loader.LoadedModel:
    return load_model(EngineConfig(model=str(folder), device="cpu", **settings))  # type: ignore[arg-type]


def test_a_folder(folder: Path) -> None:
    loaded = load(folder, dtype="float32")
    assert (loaded.name, loaded.dtype, loaded.device) == (folder.name, "float32", "cpu")
    assert loaded.tokenizer_folder == folder
    assert (loaded.model.vocab_size, loaded.model.max_model_len) == (199, 128)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512f avx512_bf16", "bfloat16"), ("fpu amx_bf16", "bfloat16"), ("fpu avx2 avx512f", "float32")],
)
def test_auto_is_bfloat16_where_the_cpu_multiplies_it(
    flags: str, expected: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: amx_bf16\n")
    monkeypatch.setattr(loader, "cpu_flags", lambda: cpu_flags(cpuinfo))
    assert load(folder).dtype == expected


def test_auto_is_float32_where_the_cpu_is_unknown(tmp_path: Path) -> None:
    assert cpu_flags(tmp_path / "missing") == set()


def test_max_model_len_is_the_smaller_and_never_more_than_the_model_has(folder: Path) -> None:
    assert load(folder, max_model_len=50).model.max_model_len == 50
    with pytest.raises(ModelError, match="max_model_len is 129, and the model was made for 128 positions"):
        load(folder, max_model_len=129)


def test_cuda_where_there_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="PyTorch sees no CUDA device"):
        load_model(EngineConfig(model=str(folder), device="cuda"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "architecture MixtralForCausalLM are not supported"),
        ({"architectures": None}, "none named"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "low_freq_factor|factor"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_key_value_heads": 3}, "4 heads of 16 dims over 3 KV heads"),
        ({"vocab_size": 200}, r"model\.embed_tokens\.weight is \[199, 64\]; config.json makes it \[200, 64\]"),
        ({"num_hidden_layers": 4}, r"lack the tensor model\.layers\.3\."),
    ],
)
def test_what_the_decoder_does_not_do_is_refused(changes: dict, words: str, folder: Path) -> None:
    edit(folder, **changes)
    with pytest.raises(ModelError, match=words) as caught:
        load(folder, dtype="float32")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b"\xff" * 100])
def test_broken_folders_get_one_sentence(name: str, content: bytes | None, folder: Path) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ModelError):
        load(folder)


def test_an_index_can_not_lead_out_of_its_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "model.safetensors"
    (folder / "model.safetensors").rename(outside)
    index = {"weight_map": {"model.norm.weight": f"../{outside.parent.name}/{outside.name}"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="can't be read as safetensors"):
        load(folder)


def test_integer_weights_are_refused(folder: Path) -> None:
    save_file(
        {"model.layers.0.input_layernorm.weight": torch.zeros(64, dtype=torch.int8)}, folder / "model.safetensors"
    )
    with pytest.raises(ModelError, match=r"is torch\.int8"):
        load(folder)


def test_an_unknown_name_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no model 'smolm2': it must be smollm2, a folder"):
        load_model(EngineConfig(model="smolm2", model_cache=str(tmp_path)))
    with pytest.raises(ModelError, match="there is no file"):
        load_model(EngineConfig(model=str(tmp_path / "x.gguf"), model_cache=str(tmp_path)))


@pytest.mark.parametrize(
    ("model", "name"),
    [("smollm2", "SmolLM2-135M-Instruct"), ("/models/a.Q4_0.gguf", "a.Q4_0"), ("scripted:/x/replies.json", "replies")],
)
def test_names(model: str, name: str) -> None:
    assert model_name(model) == name


def test_the_pool_is_what_the_memory_holds_but_no_more_than_the_seats_can_fill(folder: Path) -> None:
    model = load(folder, dtype="float32").model
    block = model.kv_bytes_per_block(16)
    assert num_kv_blocks(EngineConfig(kv_blocks=7), model) == 7
    assert num_kv_blocks(EngineConfig(kv_memory=10 * block + 1), model) == 10
    assert num_kv_blocks(EngineConfig(max_num_seqs=2), model) == 2 * 128 // 16
    with pytest.raises(ModelError, match=f"kv_memory is 1024 bytes; one block of 16 positions takes {block}"):
        num_kv_blocks(EngineConfig(kv_memory=1024), model)


def test_threads_are_cut_to_the_quota_of_the_container(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text("150000 100000\n")
    assert _quota(file) == 2
    file.write_text("max 100000\n")
    assert _quota(file) > 1000
    assert _quota(tmp_path / "missing") > 1000
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    assert compute_threads() == torch.get_num_threads()
    model = load(folder, dtype="float32").model
    ModelRunner(model, model.new_cache(2, 4))
    assert torch.get_num_threads() == compute_threads()


def test_loading_the_default_model_needs_no_transformers(default_folder: Path) -> None:
    """transformers takes seconds to import; an engine must be ready within 5 s of its start."""
    code = (
        "import sys\n"
        "from inference import EngineConfig\n"
        "from inference.execution.models.loader import load_model\n"
        "load_model(EngineConfig())\n"
        "print({'transformers', 'gguf', 'triton', 'django'} & set(sys.modules))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "set()", run.stderr


def test_preparing_needs_no_torch() -> None:
    code = "import sys, inference.execution.models.prepare; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "False", run.stderr


def test_scripted_models_use_the_default_tokenizer(default_folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "replies.json"
    script.write_text(json.dumps({"default": {"text": "Hi"}}))
    loaded = load_model(EngineConfig(model=f"scripted:{script}"))
    assert (loaded.name, loaded.tokenizer_folder) == ("replies", default_folder)
    assert loaded.model.vocab_size == 49152
    assert np.isfinite(loaded.model.kv_bytes_per_block(16))
