"""Children are restarted with growing pauses, given up when that does not help, and stopped for certain."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from playground import private_broker, processes
from playground.processes import Child


def python(code):
    return [sys.executable, "-c", code]


async def test_what_ends_is_started_again(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "FIRST_PAUSE", 0.01)
    count = tmp_path / "count"
    ended = []

    async def on_exit(pid, status):
        ended.append(status)

    code = """
import os, time, sys
if os.path.exists(os.environ["COUNT"]):
    time.sleep(60)
open(os.environ["COUNT"], "w").close()
sys.exit(7)
"""
    child = Child("child", python(code), {**os.environ, "COUNT": str(count)}, on_exit=on_exit)
    await child.start()
    first = child.pid
    keeping = asyncio.create_task(child.keep_running())
    while child.pid in (first, None):
        await asyncio.sleep(0.01)
    assert ended == [7]
    await child.stop(5.0)
    await keeping
    assert child.pid is None


async def test_what_ends_again_and_again_is_given_up(monkeypatch):
    monkeypatch.setattr(processes, "FIRST_PAUSE", 0.001)
    child = Child("child", python("raise SystemExit(1)"), dict(os.environ))
    await child.start()
    await asyncio.wait_for(child.keep_running(), 30)
    assert child.gave_up.is_set()


async def test_pauses_grow(monkeypatch):
    pauses = []

    async def no_pause(seconds):
        pauses.append(seconds)

    child = Child("child", ["/bin/false"], dict(os.environ))
    await child.start()
    monkeypatch.setattr(processes.asyncio, "sleep", no_pause)
    await child.keep_running()
    assert pauses == [0.5, 1.0, 2.0, 4.0]


async def test_what_does_not_hear_sigterm_is_killed():
    code = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    child = Child("child", python(code), dict(os.environ))
    await child.start()
    while b"SIG_IGN" not in Path(f"/proc/{child.pid}/cmdline").read_bytes():
        await asyncio.sleep(0.01)
    keeping = asyncio.create_task(child.keep_running())
    await child.stop(0.5)
    await keeping
    assert child.pid is None


async def test_a_child_without_its_parent_does_not_start():
    """The parent died between the start and the tie."""
    process = await asyncio.create_subprocess_exec(sys.executable, str(processes.TETHER), "1", "/bin/true")
    assert await process.wait() == 1


def test_a_long_data_folder_still_gets_a_socket(tmp_path):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    folder = private_broker.runtime_folder(deep)
    try:
        assert len(str(folder / "broker.sock")) < 100
        assert folder.stat().st_mode & 0o077 == 0
        assert folder == private_broker.runtime_folder(deep)
    finally:
        shutil.rmtree(folder)


def test_without_any_broker_a_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setattr(private_broker.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(private_broker.BrokerError, match="install valkey-server or redis-server"):
        private_broker.server_program()


def test_a_server_on_path_serves_where_no_wheel_fits(monkeypatch, tmp_path):
    program = tmp_path / "redis-server"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setattr(private_broker.platform, "machine", lambda: "riscv64")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert private_broker.server_program() == program
