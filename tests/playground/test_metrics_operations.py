"""What the operations page says is so: codes of log lines, files that their programs take, commands that there are."""

import json
import logging
import os
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest
from django.core.management import get_commands

from inference.serving.faults import OTHER, FaultCounter, code_of
from inference.serving.tally import SEPARATOR, Tally
from playground.logs import FIELDS, logging_settings
from playground.metrics.families import COUNTED, GAUGES, PREFIX

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
CHILDREN = ("engine", "web", "broker")
CALL = re.compile(r"log\.(?:warning|error|exception)\(\s*f?\"([^\"]*)\"")


def codes_in_the_source():
    lines = [
        line for room in ("inference", "kernels", "playground") for file in (ROOT / room).rglob("*.py")
        for line in CALL.findall(file.read_text())
    ]  # fmt: skip
    filled = [line.replace("%s_", f"{child}_", 1) for line in lines for child in CHILDREN if line.startswith("%s_")]
    return {code_of(line) for line in [*(line for line in lines if not line.startswith("%s_")), *filled]}


def test_every_code_of_a_log_line_is_on_the_page():
    table = PAGE[PAGE.index("### Log lines and their codes") :]
    rows = re.findall(r"^\| (`.*?) \| ", table, re.MULTILINE)
    listed = {code for row in rows for code in re.findall(r"`([a-z_]+)`", row)}
    assert codes_in_the_source() | {OTHER} == listed
    assert OTHER not in codes_in_the_source()  # each line of ours begins with a code


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("engine_hung: it has work", "engine_hung"),
        ("message_failed", "message_failed"),
        ("Internal Server Error: /v1/", OTHER),
        ("took 3 s: too long", OTHER),
    ],
)
def test_the_code_of_a_line(line, code):
    assert code_of(line) == code


def test_a_fault_is_one_count():
    tally = Tally()
    logger = logging.getLogger("batchscope.test-faults")
    logger.propagate = False
    logger.addHandler(FaultCounter(tally, ""))
    logger.setLevel(logging.DEBUG)
    logger.warning("broker_unreachable: %s", "ConnectionError")
    logger.error("engine_hung: %s", "it was stopped")
    logger.info("accepted")
    assert tally.take().values == {
        SEPARATOR.join(("faults_total", "", "broker_unreachable")): 1,
        SEPARATOR.join(("faults_total", "", "engine_hung")): 1,
    }


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_says_only_what_it_may(log_format):
    """A field that nobody listed, such as a text, stays out."""
    config = logging_settings("INFO", log_format)["formatters"]["line"]
    formatter = config.pop("()")(**config)
    record = logging.LogRecord("batchscope.requests", logging.INFO, "", 0, "accepted", (), None)
    record.request_id, record.prompt, record.messages = "abc", "a secret", ["another"]
    line = formatter.format(record)
    assert "secret" not in line
    assert "another" not in line
    assert "abc" in line
    if log_format == "json":
        assert json.loads(line)["request_id"] == "abc"
    assert not {"prompt", "messages", "answer", "text", "content"} & set(FIELDS)


def block(language, contains=""):
    """A fenced block of the page."""
    found = [b for b in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if contains in b]
    assert len(found) == 1, (language, contains)
    return found[0]


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def needs(program):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@needs("systemd-analyze")
def test_the_unit_file(tmp_path):
    (tmp_path / "python").symlink_to("/bin/true")
    unit = block("ini").replace("/opt/batchscope/.venv/bin/python", str(tmp_path / "python"))
    (tmp_path / "batchscope.service").write_text(unit.replace("/opt/batchscope", str(tmp_path)))
    said = run("systemd-analyze", "verify", "--man=no", str(tmp_path / "batchscope.service"))
    assert "batchscope.service" not in said, said


@needs("nginx")
def test_the_nginx_file(tmp_path):
    run(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=chat.example.org"),
        *("-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "pem")),
    )
    site = block("nginx").replace("/etc/ssl/certs/chat.example.org.pem", str(tmp_path / "pem"))
    site = site.replace("/etc/ssl/private/chat.example.org.key", str(tmp_path / "key"))
    paths = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}} http {{ {paths} access_log off; {site} }}"
    )
    assert "test is successful" in run("nginx", "-t", "-c", str(tmp_path / "nginx.conf"))


@needs("caddy")
def test_the_caddy_file(tmp_path):
    (tmp_path / "Caddyfile").write_text(block("caddyfile"))
    environment = {**os.environ, "HOME": str(tmp_path)}
    said = run("caddy", "adapt", "--config", str(tmp_path / "Caddyfile"), env=environment)
    assert '"flush_interval":-1' in said


@needs("promtool")
def test_the_alerts(tmp_path):
    (tmp_path / "alerts.yml").write_text(block("yaml", "alert:"))
    assert "SUCCESS" in run("promtool", "check", "rules", str(tmp_path / "alerts.yml"))


def test_the_alerts_ask_for_metrics_that_there_are():
    ends = ("", "_bucket", "_sum", "_count")
    known = {PREFIX + family.name + end for family in (*GAUGES, *COUNTED) for end in ends}
    assert set(re.findall(r"batchscope:[a-z_]+", PAGE)) <= known


def test_the_commands():
    named = set(re.findall(r"manage\.py ([a-z]+)", PAGE))
    assert named >= {"serve", "web", "engine", "migrate", "createkey", "loginlink"}
    assert named <= set(get_commands())


def test_a_backup_while_it_runs(tmp_path):
    """What `.backup` does, with a writer that has not come to its checkpoint: a plain copy lacks what the WAL has."""
    with sqlite3.connect(tmp_path / "live") as live:
        live.execute("pragma journal_mode=wal")
        live.execute("create table t (n)")
        live.execute("insert into t values (7)")
        live.commit()
        with sqlite3.connect(tmp_path / "backup") as backup:
            live.backup(backup)
            assert backup.execute("select n from t").fetchall() == [(7,)]
        backup.close()
    live.close()
