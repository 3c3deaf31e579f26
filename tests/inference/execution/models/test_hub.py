"""Models by the id of a repository: what is fetched, what is not, and what is said when it can't be."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from support.models import load_llama, tiny_llama

from inference.execution.models import hub
from inference.execution.models.errors import ModelError
from inference.execution.models.prepare import prepare_model

ID = "some-org/Tiny-1.5B"
# The client's HTTP library, which is another one in other versions.
http = importlib.import_module(errors.HfHubHTTPError.__bases__[0].__module__.partition(".")[0])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository's files, some of which a model does not need."""
    folder = tmp_path / "repository"
    tiny_llama().save_pretrained(folder, max_shard_size="100KB")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_text("{}")
    for name in ("pytorch_model.bin", "modeling_tiny.py", "README.md", "consolidated.safetensors", "onnx/model.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("unwanted")
    return folder


class Hub:
    """Stands in for snapshot_download: copies what the patterns choose into a snapshot in the hub's cache."""

    def __init__(self, repository: Path, cache: Path) -> None:
        self.repository, self.calls, self.fails = repository, [], None
        self.meanwhile: Callable[[Path], object] = lambda blobs: None
        self.root = cache / f"models--{ID.replace('/', '--')}"
        self.snapshot = self.root / "snapshots" / "abc"

    def __call__(
        self, repo_id: str, allow_patterns: list[str], ignore_patterns: list[str], local_files_only: bool = False
    ) -> str:
        assert repo_id == ID
        if local_files_only:
            if not self.snapshot.is_dir():
                raise errors.LocalEntryNotFoundError("not there")
            return str(self.snapshot)
        self.calls.append(repo_id)
        if self.fails is not None:
            raise self.fails
        (self.root / "blobs").mkdir(parents=True, exist_ok=True)
        self.meanwhile(self.root / "blobs")
        for path in self.repository.rglob("*"):
            name = path.relative_to(self.repository).as_posix()
            chosen = any(fnmatch(name, p) for p in allow_patterns)
            if path.is_file() and chosen and not any(fnmatch(name, p) for p in ignore_patterns):
                (self.snapshot / name).parent.mkdir(parents=True, exist_ok=True)
                (self.snapshot / name).write_bytes(path.read_bytes())
        return str(self.snapshot)


@pytest.fixture
def fake(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(repository, tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return made


def fetch(lines: list[str] | None = None) -> Path:
    return prepare_model(ID, progress=(lines if lines is not None else []).append)


def test_only_what_a_model_needs_is_fetched(fake: Hub, repository: Path) -> None:
    lines: list[str] = []
    folder = fetch(lines)
    shards = {path.name for path in repository.glob("model-*.safetensors")}
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    config = {"config.json", "generation_config.json", "model.safetensors.index.json"}
    assert {path.name for path in folder.iterdir()} == shards | tokenizer | config
    assert lines == [f"fetching {ID} from the Hugging Face hub"]
    load_llama(folder)


def test_what_is_there_already_needs_no_network(fake: Hub) -> None:
    folder = fetch()
    fake.fails = ConnectionError("no network")
    lines: list[str] = []
    assert fetch(lines) == folder
    assert (len(fake.calls), lines) == (1, [])


@pytest.mark.parametrize("lost", ["config.json", "tokenizer.json", "model-00002*", "*.index.json"])
def test_what_an_interrupted_download_left_is_completed(lost: str, fake: Hub) -> None:
    next(fetch().glob(lost)).unlink()
    load_llama(fetch())
    assert len(fake.calls) == 2


def test_a_folder_of_that_name_comes_first(fake: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ID).mkdir(parents=True)
    assert fetch() == Path(ID)
    assert not fake.calls


def test_progress_is_said_in_megabytes(fake: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "EVERY", 0.01)
    lines: list[str] = []

    def arrive(blobs: Path) -> None:
        (blobs / "a.incomplete").write_bytes(bytes(3_000_000))
        deadline = time.monotonic() + 20
        while len(lines) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

    fake.meanwhile = arrive
    fetch(lines)
    assert lines[1:] == ["  3 MB"]


def response(status: int) -> Any:
    return http.Response(status, request=http.Request("GET", "https://hub.example/api/models/secret?token=x"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.LocalEntryNotFoundError("Got: ConnectError\nAn error happened"), r"can't be reached \(is there a net"),
        (ConnectionError("refused"), "can't be reached"),
        (http.ConnectTimeout("slow"), "can't be reached"),
        (http.ProxyError("403"), "can't be reached"),
        (errors.OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE forbids"),
        (errors.RepositoryNotFoundError("404\nRepository Not Found", response=response(404)), "no such repository"),
        (errors.GatedRepoError("403\nGated", response=response(403)), "ask for an agreement first"),
        (errors.HFValidationError("Repo id must be"), "no such repository"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (errors.HfHubHTTPError("Server error '500'\nfor url", response=response(500)), "Server error '500'"),
        (RuntimeError(""), "RuntimeError"),
    ],
)
def test_a_failure_is_one_sentence(error: Exception, words: str, fake: Hub) -> None:
    fake.fails = error
    with pytest.raises(ModelError, match=words) as caught:
        fetch()
    message = str(caught.value)
    assert message.startswith(f"there is no folder {ID} here, and it could not be fetched from the Hugging Face hub: ")
    assert message.endswith(".")
    assert "\n" not in message
    assert "token=" not in message


@pytest.mark.parametrize("left", [["README.md", "pytorch_model.bin", "config.json"], ["model.Q4_0.gguf"]])
def test_a_repository_without_safetensors(left: list[str], fake: Hub, repository: Path) -> None:
    for path in list(repository.rglob("*")):
        if path.is_file():
            path.unlink()
    for name in left:
        (repository / name).write_text("{}")
    fake.snapshot.mkdir(parents=True)
    with pytest.raises(ModelError, match=f"{ID} on the Hugging Face hub holds no config.json with safetensors"):
        fetch()


@pytest.mark.parametrize(
    ("name", "is_id"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", True),
        ("a/b", True),
        ("./a/b", False),
        ("../a/b", False),
        ("/a/b", False),
        ("~/b", False),
        ("a/b/c", False),
        ("a/../b", False),
        ("smollm2", False),
        ("a/", False),
        ("a/b\n", False),
    ],
)
def test_what_an_id_looks_like(name: str, is_id: bool) -> None:
    assert hub.is_hub_id(name) == is_id


@pytest.mark.parametrize(
    ("environment", "words"),
    [({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE forbids"), ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "can't be reached")],
)
def test_the_real_client_without_a_network(environment: dict[str, str], words: str, tmp_path: Path) -> None:
    code = (
        "from inference.execution.models.errors import ModelError\n"
        "from inference.execution.models.prepare import prepare_model\n"
        "try:\n"
        "    prepare_model('some-org/nothing')\n"
        "except ModelError as error:\n"
        "    print(error)\n"
    )
    settings = {**os.environ, "HF_HOME": str(tmp_path), **environment}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=settings)
    assert words in run.stdout
    assert run.stdout.count("\n") == 1


def test_the_real_client_finds_a_snapshot_in_the_cache(repository: Path, tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    root = tmp_path / "hub" / "models--some-org--Tiny-1.5B"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(commit)
    (root / "snapshots").mkdir()
    repository.rename(root / "snapshots" / commit)
    code = f"from inference.execution.models.prepare import prepare_model; print(prepare_model({ID!r}))"
    settings = {**os.environ, "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=settings)
    assert run.stdout.strip() == str(root / "snapshots" / commit)
