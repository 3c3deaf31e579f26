"""`serve` ends, in every way it can, and leaves nothing running; and it does not begin what can't work."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_in_order(serve_process, number):
    pids = serve_process.children().values()
    serve_process.process.send_signal(number)
    assert serve_process.wait() == 0
    assert alive(pids) == []
    assert not (serve_process.data_dir / "run" / "broker.sock").exists()


async def test_sigterm_in_mid_stream(serve_process):
    async with serve_process.chat() as chat:
        request_id = await chat.generate("story 1 please", max_tokens=600)
        answer = Answer()
        while answer.seq < 3:
            message = await chat.receive()
            if message.get("request_id") == request_id:
                answer.take(message)
        pids = serve_process.children().values()
        serve_process.process.terminate()
        assert serve_process.wait() == 0
    assert alive(pids) == []


def test_a_second_signal_does_not_wait(serve_process):
    pids = serve_process.children()
    os.kill(pids["web"], signal.SIGSTOP)  # it will not hear of any SIGTERM
    serve_process.process.terminate()
    time.sleep(0.2)
    serve_process.process.terminate()
    assert serve_process.wait(5.0) == 0
    assert alive(pids.values()) == []


def test_sigkill_leaves_nothing_running(serve_process):
    pids = serve_process.children().values()
    assert len(pids) == 3
    serve_process.process.kill()
    serve_process.process.wait()
    assert wait_until_gone(pids)


def test_it_starts_again_on_what_a_killed_one_left(make_server, tmp_path):
    first = make_server()
    first.start()
    first.process.kill()
    first.process.wait()
    second = make_server()
    second.data_dir = first.data_dir
    second.start()
    second.login()
    assert second.get("/health").status_code == 200


def test_a_port_that_is_taken_is_told_before_anything_starts(make_server):
    server = make_server()
    with socket.create_server(("127.0.0.1", server.port)):
        server.launch()
        assert server.wait() == 1
    assert server.lines == [
        f"batchscope: port {server.port} on 127.0.0.1 is taken; stop what listens there, or set BATCHSCOPE_PORT"
    ]


def test_two_on_one_data_folder(serve_process, make_server):
    second = make_server()
    second.data_dir = serve_process.data_dir
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
