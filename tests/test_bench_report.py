"""The benchmark's report and its door: tables, the section that is added, flags, other engines' processes."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import __main__ as door
from bench import drafts, machine, peers, picture, report
from bench.load import Point


def test_a_table_in_markdown() -> None:
    text = report.table(("what", "ms"), [["head", 1.234], ["layers", None]])
    assert text.splitlines() == ["| what | ms |", "| --- | --- |", "| head | 1.23 |", "| layers |  |"]


def test_a_row_that_does_not_fit_its_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 cells, and there are 2 columns"):
        report.table(("a", "b"), [[1, 2, 3]])


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1234"), (7, "7"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.012"), (0.0, "0.00"), ("x", "x")],
)
def test_figures_that_count(value: float | str, text: str) -> None:
    assert report.cell(value) == text


def test_a_section_has_date_machine_versions_and_parts() -> None:
    now = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
    text = report.section("a run", "2 cores", "Python 3", [("Speed", "fast"), ("Load", "high")], now)
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert heads == ["## 2026-03-04 05:06 UTC: a run", "### Speed", "### Load"]
    assert "2 cores" in text
    assert "Python 3" in text


def test_a_section_is_added_behind_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    path.write_text("# Results\n\nOld figures.\n\n\n")
    report.append("## First\n", path)
    report.append("## Second\n", path)
    assert path.read_text() == "# Results\n\nOld figures.\n\n## First\n\n## Second\n"


def test_a_file_that_is_not_there_is_begun(tmp_path: Path) -> None:
    report.append("## First\n", tmp_path / "RESULTS.md")
    assert (tmp_path / "RESULTS.md").read_text() == "# Results\n\n## First\n"


def test_the_machine_is_named() -> None:
    assert f"{machine.cores()} cores" in machine.describe()
    assert "torch 2" in machine.versions()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--only", "steps,speed"], "there is no part 'speed'; the 9 are w1, steps"),
        (["--rates", "1,0"], "a rate is 0; it must be from 0.01 to 1000 requests/s"),
        (["--rates", "1,x"], "'1,x' is no list of numbers such as 1,2,4"),
        (["--seats", "0"], "seats is '0'; it must be a whole number from 1 to 1024"),
        (["--peer", "no-such-program x"], "there is no program 'no-such-program'"),
        (["--peer", "'x"], "is no command"),
    ],
)
def test_a_wrong_flag_is_told_with_true_numbers(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        door.parser().parse_args(flags)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_the_service_is_measured_on_request_only() -> None:
    def chosen(*flags: str) -> list[str]:
        return door.chosen(door.parser().parse_args(flags))

    assert "service" not in chosen()
    assert set(chosen("--service")) == set(door.STAGES)
    assert chosen("--only", "load,steps") == ["steps", "load"]
    assert chosen("--only", "steps", "--service") == ["steps", "service"]


def test_peers_of_make_are_several_commands() -> None:
    options = door.parser().parse_args(["--peers", f"{sys.executable} -V; {sys.executable} a.py ;"])
    assert options.peers == [f"{sys.executable} -V", f"{sys.executable} a.py"]
    assert door.parser().parse_args(["--peers", ""]).peers == []


def saying(**figures: object) -> str:
    """A command that prints a line of words and a line of JSON."""
    return shlex.join([sys.executable, "-c", f"print('hello'); print({json.dumps(json.dumps(figures))})"])


def test_a_peer_s_figures_and_memory() -> None:
    found = peers.peer(saying(system="other", w1=2.5))
    assert (found["system"], found["w1"]) == ("other", 2.5)
    assert found["peak_mb"] >= 0
    assert found["started_at"] > 0


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("raise SystemExit('no model')", "status 1 and 0 JSON lines: no model"),
        ("print(1)", "status 0 and 0 JSON lines"),
    ],
)
def test_a_peer_that_fails_is_told(code: str, sentence: str) -> None:
    with pytest.raises(peers.PeerError, match=sentence):
        peers.peer([sys.executable, "-c", code])


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(peers.PeerError, match="can't be run"):
        peers.peer("/no/such/program")


def test_each_peer_stands_between_two_of_ours() -> None:
    ours = shlex.split(saying(system="batchscope", w1=30, single=8))
    results = peers.in_turn(ours, [saying(system="a", w1=10, single=2), saying(system="b", w1=15)], lambda what: None)
    assert [result["system"] for result in results] == ["batchscope", "a", "batchscope", "b", "batchscope"]
    assert peers.ratios(results) == [{"system": "a", "w1": 3.0, "single": 4.0}, {"system": "b", "w1": 2.0}]


def test_the_memory_of_a_process_and_those_under_it() -> None:
    child = "import time; x = bytearray(80_000_000); time.sleep(0.6)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print('{{}}')"
    found = peers.peer([sys.executable, "-c", code])
    assert found["peak_mb"] > 80


def test_the_picture_has_a_line_and_a_name_for_each_policy(tmp_path: Path) -> None:
    points = [
        Point(policy, rate, 100.0 * rate, rate, 2 * rate, 0.01) for policy in picture.LOOKS for rate in (1.0, 2.0, 4.0)
    ]
    target = tmp_path / "new" / "load.svg"
    picture.draw(points, target)
    text = target.read_text()
    ElementTree.fromstring(text)
    assert picture.PAPER in text
    for policy, (colour, _) in picture.LOOKS.items():
        assert f"{policy}, p95" in text
        assert colour in text


def test_there_are_prompts_of_both_kinds() -> None:
    for kind in drafts.KINDS:
        chats = drafts.chats(kind)
        assert len(chats) >= 8
        assert all(chat[0]["role"] == "user" and chat[0]["content"] for chat in chats)


def test_the_axes_of_the_picture_hold_all_points() -> None:
    points = [Point(policy, rate, 90.0, rate, 7 * rate, 0.01) for policy in picture.LOOKS for rate in (1.0, 32.0)]
    through, latency = picture.figure_of(points).axes
    assert through.get_ylim()[0] == 0 < 90 < through.get_ylim()[1]
    assert 0 < latency.get_ylim()[0] < 1 < 7 * 32 < latency.get_ylim()[1]
    assert len(latency.lines) == 2 * len(picture.LOOKS)
