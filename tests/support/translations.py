"""The words of the server side that have a translation: those marked in Python and in templates."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKERS = {"_": 1, "gettext": 1, "gettext_lazy": 1, "ngettext": 2}


def marked() -> set[str]:
    return _in_python() | _in_templates()


def _in_python() -> set[str]:
    words: set[str] = set()
    for path in (ROOT / "playground").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MARKERS:
                arguments = node.args[: MARKERS[node.func.id]]
                words.update(ast.literal_eval(argument) for argument in arguments)
    return words


def _in_templates() -> set[str]:
    pages = [path.read_text() for path in (ROOT / "templates").rglob("*.html")]
    words = {words for page in pages for words in re.findall(r'{% translate "([^"]+)"', page)}
    blocks = (
        block for page in pages for block in re.findall(r"{% blocktranslate[^%]*%}(.*?){% endblocktranslate", page)
    )
    return words | {re.sub(r"{{ (\w+) }}", r"%(\1)s", block) for block in blocks}
