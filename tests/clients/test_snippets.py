"""The Python of docs/clients/README.md runs as it stands there, but for the address and the model's name."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from support.api_keys import http_client
from support.server import ROOT, Server


def test_the_openai_snippet(server: Server, key: str) -> None:
    guide = (ROOT / "docs" / "clients" / "README.md").read_text()
    [snippet] = [code for code in re.findall(r"```python\n(.+?)```", guide, re.S) if "from openai" in code]
    with http_client(server, key) as http:
        model = http.get("/v1/models").json()["data"][0]["id"]
    snippet = snippet.replace("http://localhost:8000", server.base_url).replace("SmolLM2-135M-Instruct", model)
    run = subprocess.run(
        [sys.executable, "-c", snippet],
        env={**os.environ, "BATCHSCOPE_KEY": key},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.stdout, run.stderr) == ("The capital is Paris. 巴黎 👋", "")
