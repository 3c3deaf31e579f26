"""Segments of the ledger as files: one folder an engine, one file a segment, the oldest deleted in time.

Knows: names of files and how they are written whole. Must not know: the broker, threads, what a segment holds.
A file appears under its name when all of it is written. Every method may be called from any thread and by several
processes at once; what another one deletes meanwhile is no error.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from pathlib import Path
from urllib.parse import quote, unquote

from inference.serving.segments import SegmentInfo

NAME = re.compile(r"(\d{1,20})-(\d{1,20})-(\d{1,20})\.segment")
DRAFT_KEPT = 3600.0  # seconds that a file which is being written may take


class LedgerDisk:
    """`folder` is made when something is first written. `write` and `prune` raise OSError where the disk refuses; what
    can't be read is not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, engine: str, info: SegmentInfo, data: bytes) -> None:
        folder = self._of(engine)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = folder / f".{secrets.token_hex(8)}.draft"
        try:
            with open(draft, "xb") as file:
                file.write(data)
            draft.replace(folder / _name(info))
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise

    def engines(self) -> list[str]:
        """Those of whom something is kept."""
        try:
            with os.scandir(self._folder) as entries:
                return sorted(unquote(entry.name) for entry in entries if entry.is_dir())
        except OSError:
            return []

    def segments(self, engine: str) -> list[SegmentInfo]:
        """All that are kept of an engine, oldest first."""
        return sorted(info for info, _ in _listed(self._of(engine)))

    def newest_epoch(self, engine: str) -> int:
        """0 where nothing is kept of it."""
        try:
            with os.scandir(self._of(engine)) as entries:
                found = (NAME.fullmatch(entry.name) for entry in entries)
                return max((int(match[1]) for match in found if match), default=0)
        except OSError:
            return 0

    def read(self, engine: str, info: SegmentInfo) -> bytes | None:
        """None where it is not there any more, or can't be read."""
        try:
            return (self._of(engine) / _name(info)).read_bytes()
        except OSError:
            return None

    def prune(self, days: float, most_bytes: int) -> int:
        """Delete what is older than `days`, and the oldest while all engines together have more than `most_bytes`; how
        many files that were."""
        now, files = time.time(), []
        for engine in self.engines():
            folder = self._of(engine)
            _delete_drafts(folder, now - DRAFT_KEPT)
            files += [(written_at, info.size, folder / _name(info)) for info, written_at in _listed(folder)]
        room, deleted = most_bytes, 0
        for written_at, size, path in sorted(files, reverse=True):
            room -= size
            if room < 0 or written_at < now - days * 86400:
                path.unlink(missing_ok=True)
                deleted += 1
        return deleted

    def _of(self, engine: str) -> Path:
        # An engine may be called anything: what has a meaning in a path is escaped.
        return self._folder / quote(engine, safe="").replace(".", "%2E")


def _name(info: SegmentInfo) -> str:
    return f"{info.epoch}-{info.first}-{info.last}.segment"


def _listed(folder: Path) -> list[tuple[SegmentInfo, float]]:
    """Segments in a folder, each with when it was written (Unix seconds)."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if match := NAME.fullmatch(entry.name):
                    with contextlib.suppress(OSError):
                        stat = entry.stat()
                        epoch, first, last = map(int, match.groups())
                        found.append((SegmentInfo(epoch, first, last, stat.st_size), stat.st_mtime))
    except OSError:  # nothing was written, or it can't be read: what the broker keeps must not depend on a disk
        pass
    return found


def _delete_drafts(folder: Path, before: float) -> None:
    """Those that nobody is writing any more."""
    for draft in folder.glob(".*.draft"):
        with contextlib.suppress(FileNotFoundError):
            if draft.stat().st_mtime < before:
                draft.unlink()
