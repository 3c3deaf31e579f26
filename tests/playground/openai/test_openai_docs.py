"""docs/openai.md: its snippets run, and its lists are the code's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import ROOT, Server

from playground.http.errors import STATUS_OF_CODE
from playground.http.openai.errors import STATUS
from playground.http.openai.fields import IGNORED, REFUSED
from playground.http.openai.requests import ChatCompletionRequest, CompletionRequest

PAGE = ROOT / "docs" / "openai.md"
TEXT = PAGE.read_text()
SNIPPETS = re.findall(r"^```(python|sh)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_there_are_some() -> None:
    assert {language for language, _ in SNIPPETS} == {"python", "sh"}


@pytest.mark.parametrize("place", range(len(SNIPPETS)))
def test_a_snippet_runs(server: Server, key: str, place: int, tmp_path: Path) -> None:
    language, snippet = SNIPPETS[place]
    command = [sys.executable, "-c"] if language == "python" else ["bash", "-euc"]
    done = subprocess.run(
        [*command, snippet.replace("http://localhost:8000", server.base_url)],
        env={"PATH": os.environ["PATH"], "BATCHSCOPE_KEY": key},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Nothing to say." in done.stdout or '"Nothing"' in done.stdout
    assert '"error"' not in done.stdout


def test_a_call_made_again_is_the_same(server: Server, key: str, tmp_path: Path) -> None:
    snippet = next(text for _, text in SNIPPETS if "Idempotency-Key" in text)
    done = subprocess.run(
        ["bash", "-euc", snippet.replace("http://localhost:8000", server.base_url)],
        env={"PATH": os.environ["PATH"], "BATCHSCOPE_KEY": key},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    first, again = re.findall(r'"id":"(cmpl-[^"]+)"', done.stdout)
    assert first == again


def test_every_field_is_told_of() -> None:
    fields = {*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields, *IGNORED}
    assert {name for name in fields if f"`{name}`" not in TEXT} == set()
    words = ("tools", "functions", "audio")
    named = {name for name in REFUSED if f"`{name}`" in TEXT}
    assert set(REFUSED) - named == {"tools", "tool_choice", "functions", "function_call", "audio", "modalities"}
    assert all(word in TEXT for word in words)


def test_every_code_is_told_of() -> None:
    for code in {**STATUS_OF_CODE, **STATUS}:
        assert f"`{code}`" in TEXT
        assert str(STATUS[code]) in TEXT
