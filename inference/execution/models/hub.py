"""A model of the Hugging Face hub, fetched into the hub's own cache, where other programs find it too.

Knows: which files of a repository a model needs, and what can go wrong on the way. Must not know: torch, what is in the
files. Nothing that could run code is fetched: no pickled weights, no Python. huggingface_hub is imported when needed.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from inference.execution.models.errors import ModelError
from inference.execution.models.shards import weight_files

WANTED = ["*.safetensors", "*.json", "*.jinja"]
UNWANTED = ["*/*", "consolidated*"]  # folders for other programs; a second copy of the weights under Mistral's names
EVERY = 3.0  # seconds between lines of progress
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(model: str) -> bool:
    """Whether `model` has the form of a repository's id, ORGANISATION/NAME."""
    return _ID.fullmatch(model) is not None


def fetch_from_hub(model: str, progress: Callable[[str], None]) -> Path:
    """Folder of the repository's files. Where they are all in the hub's cache nothing is asked of the network, so a
    model does not change between two starts. Raises ModelError with one sentence."""
    from huggingface_hub import snapshot_download

    wanted: dict[str, Any] = {"repo_id": model, "allow_patterns": WANTED, "ignore_patterns": UNWANTED}
    if (folder := _cached(snapshot_download, wanted)) is not None:
        return folder
    progress(f"fetching {model} from the Hugging Face hub")
    try:
        with _megabytes(model, progress):
            folder = Path(snapshot_download(**wanted))
    except Exception as error:  # the client's own kinds, its HTTP library's and the disk's
        raise ModelError(
            f"there is no folder {model} here, and it could not be fetched from the Hugging Face hub: {_why(error)}."
        ) from error
    if not _complete(folder):
        raise ModelError(
            f"{model} on the Hugging Face hub holds no config.json with safetensors; other formats are not fetched."
        )
    return folder


def _cached(snapshot_download: Callable[..., str], wanted: dict[str, Any]) -> Path | None:
    try:
        folder = Path(snapshot_download(**wanted, local_files_only=True))
    except Exception:  # whatever hinders a look into the cache: fetching will say what it is
        return None
    return folder if _complete(folder) and (folder / "tokenizer.json").is_file() else None


def _complete(folder: Path) -> bool:
    """Whether a model can be loaded from it: an interrupted download leaves a folder too."""
    try:
        return (folder / "config.json").is_file() and bool(weight_files(folder))
    except ModelError:
        return False


@contextmanager
def _megabytes(model: str, progress: Callable[[str], None]) -> Generator[None]:
    """Meanwhile a line every few seconds with how much has come, in place of the client's own bars."""
    from huggingface_hub import constants, utils

    blobs = Path(constants.HF_HUB_CACHE).expanduser() / f"models--{model.replace('/', '--')}" / "blobs"
    before, ended = _bytes_in(blobs), threading.Event()

    def say() -> None:
        shown = 0
        while not ended.wait(EVERY):
            megabytes = (_bytes_in(blobs) - before) // 1_000_000
            if megabytes > shown:
                shown = megabytes
                progress(f"  {megabytes} MB")

    speaker = threading.Thread(target=say, name="hub progress", daemon=True)
    silent = utils.are_progress_bars_disabled()
    if not silent:
        utils.disable_progress_bars()
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()
        if not silent:
            utils.enable_progress_bars()


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        with suppress(OSError):  # renamed meanwhile: it is whole now
            total += path.stat().st_size
    return total


def _why(error: BaseException) -> str:
    """What the person who started the engine can do something about; the client's own first line for the rest."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "its authors ask for an agreement first; give it on the hub's page and set HF_TOKEN"
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        return "there is no such repository, or it is private (then set HF_TOKEN)"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the repository has no main revision"
    if isinstance(error, errors.OfflineModeIsEnabled) or isinstance(error.__cause__, errors.OfflineModeIsEnabled):
        return "it is not in the cache, and HF_HUB_OFFLINE forbids asking for it"
    if isinstance(error, (errors.LocalEntryNotFoundError, ConnectionError, TimeoutError)) or _of_the_network(error):
        return "the hub can't be reached (is there a network?)"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    # What the client says first is for people; the rest are addresses and advice on its own functions.
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return first.rstrip(".")


def _of_the_network(error: BaseException) -> bool:
    """By its name: the client's HTTP library is another one in other versions."""
    return any(word in type(error).__name__ for word in ("Connect", "Timeout", "Network", "Proxy"))
