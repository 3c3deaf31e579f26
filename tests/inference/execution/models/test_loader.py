"""From settings to a model: device, dtype, limits, and what is refused with a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.models import tiny_llama

from inference.config import EngineConfig
from inference.execution.cache import num_kv_blocks
from inference.execution.models import loader
from inference.execution.models.decoder_config import is_native, read_config, read_raw
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


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), "float16"), ((8, 0), "bfloat16"), ((12, 0), "bfloat16")])
def test_auto_on_a_gpu(capability: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert loader._dtype("auto", "cuda") == expected
    assert [loader._dtype(dtype, "cuda") for dtype in loader.DTYPES] == ["float32", "bfloat16", "float16"]


def test_float16_is_for_gpus(folder: Path) -> None:
    with pytest.raises(ModelError, match="float16, which is for GPUs only; on a CPU set it to auto, bfloat16"):
        load(folder, dtype="float16")


def test_max_model_len_is_the_smaller_and_never_more_than_the_model_has(folder: Path) -> None:
    assert load(folder, max_model_len=50).model.max_model_len == 50
    with pytest.raises(ModelError, match="max_model_len is 129, and the model was made for 128 positions"):
        load(folder, max_model_len=129)


def test_cuda_where_there_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="PyTorch sees no CUDA device"):
        load_model(EngineConfig(model=str(folder), device="cuda"))


SLIDING = {"architectures": ["MistralForCausalLM"], "sliding_window": 24}


def test_a_sliding_window_bounds_the_length(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Up to its length every token is attended to, so the answers are the model's own."""
    edit(folder, **SLIDING)
    assert load(folder, dtype="float32").model.max_model_len == 24
    assert "max_model_len is 24 of the model's 128 positions" in caplog.text
    assert load(folder, dtype="float32", max_model_len=20).model.max_model_len == 20
    with pytest.raises(ModelError, match="slides over 24 positions, which is not supported; set max_model_len to 24"):
        load(folder, dtype="float32", max_model_len=25)


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ({"sliding_window": None}, 128),
        ({}, 128),  # transformers' default, 4096 positions, is more than there are
        ({"sliding_window": 9, "architectures": ["LlamaForCausalLM"]}, 128),  # Llama has none
        ({"sliding_window": 9, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False}, 128),
        ({"sliding_window": 9, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}, 128),  # layers >= 28
        (
            {
                "sliding_window": 9,
                "architectures": ["Qwen2ForCausalLM"],
                "use_sliding_window": True,
                "max_window_layers": 2,
            },
            9,
        ),
        (
            {
                "sliding_window": 9,
                "architectures": ["Qwen3ForCausalLM"],
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            },
            9,
        ),
    ],
)
def test_whose_attention_slides(changes: dict, longest: int, folder: Path) -> None:
    edit(folder, **{"architectures": ["MistralForCausalLM"], **changes})
    assert read_config(folder).longest == longest


@pytest.mark.parametrize(
    ("changes", "native"),
    [
        ({}, True),
        ({"architectures": None, "model_type": "qwen2"}, True),
        ({"architectures": ["GPT2LMHeadModel"]}, False),
        ({"architectures": [], "model_type": "gemma"}, False),
        ({"architectures": 7, "model_type": None}, False),
        ({"hidden_act": "gelu"}, False),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, False),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, False),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, True),
    ],
)
def test_what_the_native_decoder_takes(
    changes: dict, native: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All else goes to transformers' model."""
    given: list[tuple] = []
    foreign = SimpleNamespace(load_foreign=lambda *settings: given.append(settings))
    monkeypatch.setitem(sys.modules, "inference.execution.models.foreign", foreign)
    edit(folder, **changes)
    if native:
        assert is_native(read_raw(folder))
        return
    load(folder, dtype="float32", max_model_len=50)
    assert given == [(folder, torch.float32, torch.device("cpu"), 50)]
    with pytest.raises(ModelError, match="the native decoder does not run"):
        read_config(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_bias": True}, r"lack the tensor model\.layers\.0\.self_attn\.q_proj\.bias"),
        ({"mlp_bias": True}, r"lack the tensor model\.layers\.0\.mlp\.gate_proj\.bias"),
        ({"mlp_bias": "yes"}, "mlp_bias is 'yes'; it must be true or false"),
        ({"architectures": ["Qwen2ForCausalLM"]}, r"lack the tensor .*q_proj\.bias"),
        ({"architectures": ["Qwen3ForCausalLM"]}, r"lack the tensor .*q_norm\.weight"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "low_freq_factor|factor"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\]; it must be an object"),
        ({"rope_parameters": {"rope_theta": "much"}}, "rope_theta is 'much'; it must be a positive number"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_theta is 0"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06"),
        ({"rms_norm_eps": None}, "rms_norm_eps is None"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": 66, "head_dim": None}, "divides a hidden_size of 66 among 4 heads"),
        ({"hidden_size": 0}, "hidden_size is 0; it must be a whole number from 1 to 16777216"),
        ({"num_attention_heads": -4}, "num_attention_heads is -4"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5"),
        ({"intermediate_size": None}, "intermediate_size is None"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000; it must be a whole number from 1"),
        ({"max_position_embeddings": 10**9}, "max_position_embeddings is 1000000000"),
        ({"head_dim": 17}, "4 heads of 17 dims over 2 KV heads"),
        ({"head_dim": True}, "head_dim is True"),
        ({"num_key_value_heads": 3}, "4 heads of 16 dims over 3 KV heads"),
        ({"sliding_window": 0, "architectures": ["MistralForCausalLM"]}, "sliding_window is 0"),
        ({"vocab_size": 200}, r"model\.embed_tokens\.weight is \[199, 64\]; config.json makes it \[200, 64\]"),
        ({"num_hidden_layers": 4}, r"lack the tensor model\.layers\.3\."),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(changes: dict, words: str, folder: Path) -> None:
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


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    tiny_llama().save_pretrained(tmp_path, max_shard_size="100KB")
    return tmp_path


def shards(folder: Path) -> list[Path]:
    found = sorted(folder.glob("model-*.safetensors"))
    assert len(found) > 2
    return found


def rewrite_index(folder: Path, change: Callable[[dict], object]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def test_a_shard_that_is_missing(sharded: Path) -> None:
    count, second = len(shards(sharded)), shards(sharded)[1]
    second.unlink()
    with pytest.raises(ModelError, match=f"lacks {second.name}, one of the {count} files that hold"):
        load(sharded)


def test_a_shard_cut_short(sharded: Path) -> None:
    second = shards(sharded)[1]
    second.write_bytes(second.read_bytes()[:-100])
    with pytest.raises(ModelError, match=f"{second.name} can't be read as safetensors"):
        load(sharded)


def test_a_shard_without_its_tensor(sharded: Path) -> None:
    save_file({}, shards(sharded)[1])
    with pytest.raises(ModelError, match="lack the tensor"):
        load(sharded)


@pytest.mark.parametrize(
    "name", ["../{other}/model.safetensors", "/etc/passwd", "..", "", "pytorch_model.bin", 7, None]
)
def test_an_index_names_only_safetensors_of_its_folder(name: object, sharded: Path, tmp_path_factory: Any) -> None:
    outside = tmp_path_factory.mktemp("outside") / "model.safetensors"
    shards(sharded)[1].rename(outside)
    name = name.format(other=outside.parent.name) if isinstance(name, str) else name
    rewrite_index(sharded, lambda names: names.update(dict.fromkeys(names, name)))
    with pytest.raises(ModelError, match="which is no safetensors file of that folder"):
        load(sharded)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"weight_map": 3}', b'{"weight_map": []}', b"[" * 100_000])
def test_an_index_that_is_none(content: bytes, sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"index\.json can't be read"):
        load(sharded)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "holds no config.json, so it is no model folder"),
        (["config.json"], "holds neither model.safetensors nor"),
        (["config.json", "pytorch_model.bin"], r"holds pickled weights only \(pytorch_model.bin\), which can run code"),
        (["config.json", "consolidated.00.pth"], r"holds pickled weights only \(consolidated.00.pth\)"),
    ],
)
def test_folders_without_weights(names: list[str], words: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for name in names:
        (folder / name).touch()
    if not names:
        (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=words) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.bool, torch.float8_e4m3fn])
def test_weights_that_are_no_plain_numbers_are_refused(dtype: torch.dtype, folder: Path) -> None:
    weights = {"model.layers.0.input_layernorm.weight": torch.zeros(64).to(dtype)}
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelError, match=f"is {dtype}; float32, float16 and bfloat16 are supported"):
        load(folder)


def test_an_unknown_name_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no model 'smolm2': it must be smollm2, a folder"):
        load_model(EngineConfig(model="smolm2", model_cache=str(tmp_path)))
    with pytest.raises(ModelError, match="there is no file"):
        load_model(EngineConfig(model=str(tmp_path / "x.gguf"), model_cache=str(tmp_path)))
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(ModelError, match=r"notes\.txt is a file and no \.gguf; a model is smollm2, a folder"):
        load_model(EngineConfig(model=str(tmp_path / "notes.txt")))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2", "SmolLM2-135M-Instruct"),
        ("/models/a.Q4_0.gguf", "a.Q4_0"),
        ("scripted:/x/replies.json", "replies"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
    ],
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


def test_a_block_takes_the_bytes_that_are_reckoned_with(folder: Path) -> None:
    model = load(folder, dtype="float32").model
    layers = model.new_cache(8, 16).layers
    assert sum(part.nbytes for layer in layers for part in layer) == 8 * model.kv_bytes_per_block(16)


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
