"""Further web processes of a server that runs as a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
from support.server import ROOT, Server, free_port


@contextlib.contextmanager
def second_web(server: Server) -> Iterator[str]:
    """Another web process on the same broker, database and data folder, with the same settings; its address."""
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("BATCHSCOPE_")}
    env.pop("DJANGO_SETTINGS_MODULE", None)
    env |= {
        **server.environment,
        "BATCHSCOPE_REDIS_URL": f"unix://{server.data_dir}/run/broker.sock",
        "BATCHSCOPE_PORT": str(port),
    }
    process = subprocess.Popen([sys.executable, str(ROOT / "manage.py"), "web"], env=env)
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(address + "/health/live").status_code == 200:
                    break
            time.sleep(0.05)
        yield address
    finally:
        process.kill()
        process.wait()
