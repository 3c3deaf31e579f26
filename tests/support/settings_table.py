"""The table of docs/settings.md, made from the settings class. As a script it writes the file: `make fix` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ByteSize

from playground.config import PREFIX, Settings

FILE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
HEAD = """# Settings

Environment variables, checked at start: a wrong value stops the command with a sentence that names the variable.
`manage.py serve`, `manage.py engine` and `daphne playground.asgi:application` read the same ones.

| variable | default | meaning |
| --- | --- | --- |
"""


def document() -> str:
    rows = (
        f"| `{PREFIX}{name.upper()}` | {_shown(name, field.default)} | {' '.join((field.description or '').split())} |"
        for name, field in Settings.model_fields.items()
    )
    return HEAD + "\n".join(rows) + "\n"


def _shown(name: str, default: Any) -> str:
    if name == "data_dir" or default is None or default in ("", ()):
        return ""
    if isinstance(default, ByteSize):
        return f"`{default.human_readable().replace('.0', '')}`"
    return f"`{default}`"


if __name__ == "__main__":
    FILE.write_text(document())
