"""docs/asyncapi.json, made from the messages' models. As a script it writes the file: `make fix` runs it."""

from __future__ import annotations

import json
from pathlib import Path

from playground.asyncapi.document import document

FILE = Path(__file__).resolve().parents[2] / "docs" / "asyncapi.json"


def text() -> str:
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
