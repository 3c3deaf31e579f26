"""Where the browser of the browser tests is. As a script: exit 0 if there is one, 1 if not."""

from __future__ import annotations

import shutil
import sys

LAUNCH_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]


def executable() -> str | None:
    """Path of a Chromium: the system's, else Playwright's own download, else None."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    return _playwrights_own()


def _playwrights_own() -> str | None:
    from pathlib import Path

    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


if __name__ == "__main__":
    sys.exit(0 if executable() else 1)
