"""The build of the C++ kernels: its cache, and what happens where it cannot be done."""

import logging
import shutil
import stat

import pytest

from kernels.cpu import build


@pytest.fixture
def cache(native, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "batchscope" / "kernels"


@pytest.fixture
def quick_build(native, monkeypatch):
    """A compiler that takes no time: it copies the library that was built already. Gives the list of its targets."""
    built, targets = native._library._name, []

    def copy(compiler, target):
        targets.append(target)
        shutil.copy(built, target)

    monkeypatch.setattr(build, "build", copy)
    return targets


def test_without_a_compiler_there_is_no_library(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert build.load_library() is None


def test_a_compiler_that_fails_is_no_error(monkeypatch, cache, caplog):
    monkeypatch.setenv("CXX", shutil.which("false"))
    with caplog.at_level(logging.WARNING):
        assert build.load_library() is None
    assert "could not be built" in caplog.text
    assert not list(cache.glob("*.so"))


def test_the_library_is_built_once_and_kept_private(cache, quick_build):
    assert build.load_library() is not None
    assert build.load_library() is not None
    assert len(quick_build) == 1
    (library,) = cache.iterdir()  # and no temporary file beside it
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert library.name == f"kernels-{build.cache_key(build.find_compiler())}.so"


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch, tmp_path, quick_build):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert build.load_library() is not None
    assert not quick_build[0].exists()


@pytest.mark.usefixtures("native")
def test_the_key_follows_source_flags_and_cpu(monkeypatch):
    compiler = build.find_compiler()
    keys = {build.cache_key(compiler)}
    monkeypatch.setattr(build, "_cpu", lambda: "another")
    keys.add(build.cache_key(compiler))
    monkeypatch.setattr(build, "FLAGS", ("-O1",))
    keys.add(build.cache_key(compiler))
    monkeypatch.setattr(build, "HEADERS", ())
    keys.add(build.cache_key(compiler))
    assert len(keys) == 4
