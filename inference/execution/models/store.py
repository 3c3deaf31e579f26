"""Folders that are made once: the model cache on disk.

Knows: locks, temporary folders, renames. Must not know: models. Several processes may want the same folder at once:
one makes it, the others wait for it; a process that dies in the middle leaves nothing that is mistaken for the whole.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from inference.execution.models.errors import ModelError


def default_cache() -> Path:
    """<user cache>/batchscope: XDG_CACHE_HOME where it is set, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "batchscope"


def make_once(target: Path, build: Callable[[Path], None], bytes_needed: int, what: str) -> Path:
    """Give `target`, made by `build(temporary folder)` where it is not there yet.

    `what` names it in errors. Raises ModelError where there is no room or no right to write.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent / f".{target.name}.lock"):
            if not target.is_dir():
                _build(target, build, bytes_needed, what)
    except OSError as error:
        raise ModelError(_sentence(error, target.parent, bytes_needed, what)) from error
    return target


def _build(target: Path, build: Callable[[Path], None], bytes_needed: int, what: str) -> None:
    # The lock is ours, so a temporary folder of this target belongs to a process that died.
    for stale in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        shutil.rmtree(stale, ignore_errors=True)
    if shutil.disk_usage(target.parent).free < bytes_needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        build(part)
        part.chmod(0o755)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sentence(error: OSError, folder: Path, bytes_needed: int, what: str) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(folder).free
        return f"{what} needs {bytes_needed / 1e6:.0f} MB of disk in {folder}, and {free / 1e6:.0f} MB are free there."
    return f"{what} could not be written to {folder}: {error.strerror or error}."
