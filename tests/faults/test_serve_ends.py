"""`serve` ends, in every way it can, and leaves nothing running; and it does not begin what can't work."""

import asyncio
import os
import signal
import socket
import time
from pathlib import Path

import pytest
import websockets
from support.api_keys import manage
from support.server import Answer


def alive(pids):
    """Those of the processes that still run (a zombie does not)."""
    running = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.append(pid)
    return running


def wait_until_gone(pids, seconds=10.0):
    deadline = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive(pids) == []


async def read_some(chat, request_id, count):
    answer = Answer()
    while answer.seq < count:
        message = await chat.receive()
        if message.get("request_id") == request_id:
            answer.take(message)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_in_mid_stream_stops_all_once_the_answer_is_whole(serve_process, number):
    pids = serve_process.children().values()
    assert len(pids) == 3
    async with serve_process.chat() as chat:
        answer = Answer()
        request_id = await chat.generate("story 1 please", max_tokens=100)
        while answer.seq < 20:
            answer.take(await chat.receive())
        serve_process.process.send_signal(number)
        await chat.read(request_id, answer)
        assert answer.finished["usage"]["completion_tokens"] == 100
        assert await asyncio.to_thread(serve_process.wait) == 0
        await chat.connection.wait_closed()
        assert chat.connection.close_code == 1012
    assert alive(pids) == []
    assert not (serve_process.data_dir / "run" / "broker.sock").exists()
    line = "waiting for 1 answer under way, 30 s at most; Ctrl-C once more stops at once"
    assert line in serve_process.lines


async def test_a_paused_engine_keeps_nobody_waiting(make_server):
    server = make_server(drain_timeout="600").start()
    server.login()
    async with server.chat() as chat:
        await asyncio.to_thread(manage, server, "control", "pause")
        request_id = await chat.generate("story 1 please", max_tokens=600)
        await chat.receive_type("queued")
        server.process.terminate()
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await chat.read(request_id, Answer())
        assert closed.value.rcvd.code == 1012
    assert server.wait() == 0


def test_a_second_signal_does_not_wait(serve_process):
    pids = serve_process.children()
    os.kill(pids["web"], signal.SIGSTOP)  # it will not hear of any SIGTERM
    serve_process.process.terminate()
    time.sleep(0.2)
    serve_process.process.terminate()
    assert serve_process.wait(5.0) == 0
    assert alive(pids.values()) == []


async def test_sigkill_leaves_nothing_running_and_the_next_start_goes_on(serve_process, make_server, story):
    """The accepted request is in the database; the broker and all it held are gone."""
    pids = serve_process.children().values()
    assert len(pids) == 3
    async with serve_process.chat() as chat:
        request_id = await chat.generate("story 3 please", max_tokens=600, temperature=0)
        await read_some(chat, request_id, 3)
        serve_process.process.kill()
        serve_process.process.wait()
        assert wait_until_gone(pids)
    second = make_server()
    second.data_dir = serve_process.data_dir
    second.start().login()
    async with second.chat() as chat:
        await chat.send(type="resume", request_id=request_id, after_seq=0)
        answer = await chat.read(request_id, Answer())
    assert answer.text == story(3)


def test_a_port_that_is_taken_is_told_before_anything_starts(make_server):
    server = make_server()
    with socket.create_server(("127.0.0.1", server.port)):
        server.launch()
        assert server.wait() == 1
    assert server.lines == [
        f"batchscope: port {server.port} on 127.0.0.1 is taken; stop what listens there, or set BATCHSCOPE_PORT"
    ]


def test_two_on_one_data_folder(lasting_server, make_server):
    second = make_server()
    second.data_dir = lasting_server.data_dir
    second.launch()
    assert second.wait() == 1
    [line] = second.lines
    assert line.startswith("batchscope: another Batchscope runs on this data folder")


def test_a_model_that_is_not_there(make_server, tmp_path):
    """A clear sentence, restarts with growing pauses, an end to them; health says no, and the web stays up."""
    server = make_server(model=str(tmp_path / "nothing-here"))
    server.start()
    failed = [line for line in server.lines if line.startswith("engine: ") and not line.endswith("…")]
    assert len(failed) == 1
    assert "Traceback" not in server.output
    server.wait_for_line("engine: it ended 5 times within a minute")
    assert server.get("/health").status_code == 503
    assert server.get("/health/live").status_code == 200
    server.process.terminate()
    assert server.wait() == 0
