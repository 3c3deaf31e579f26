"""Settings: a wrong value is one sentence that names its variable, and the first start makes what is missing."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from playground.access.first_start import FirstStartError, data_folder, secret_key
from playground.config import PROJECT_FOLDER, Settings, SettingsError, load_settings, unknown_variables
from playground.database import DatabaseURLError, database_from_url, sqlite_database


@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("PORT", "abc", "BATCHSCOPE_PORT is 'abc'"),
        ("PORT", "70000", "BATCHSCOPE_PORT is '70000'"),
        ("DEVICE", "tpu", "BATCHSCOPE_DEVICE is 'tpu'; it must be one of: auto, cpu, cuda"),
        ("BLOCK_SIZE", "0", "BATCHSCOPE_BLOCK_SIZE is 0"),
        ("KV_MEMORY", "2QB", "BATCHSCOPE_KV_MEMORY is '2QB'"),
        ("MAX_NUM_SEQS", "1000", "BATCHSCOPE_MAX_NUM_BATCHED_TOKENS is 512, fewer than BATCHSCOPE_MAX_NUM_SEQS"),
        ("DEBUG", "perhaps", "BATCHSCOPE_DEBUG is 'perhaps'"),
        ("ORIGINS", "https://a.example/path", "BATCHSCOPE_ORIGINS"),
        ("REDIS_URL", "localhost", "BATCHSCOPE_REDIS_URL"),
        ("DATABASE_URL", "mysql://user:secret@host/name", "BATCHSCOPE_DATABASE_URL can't be used"),
        ("RESUME_GRACE", "nan", "BATCHSCOPE_RESUME_GRACE"),
        ("POLICY", "magic", "BATCHSCOPE_POLICY is 'magic'; it must be one of: continuous, dynamic, static"),
        ("RUN_TIMEOUT", "0", "BATCHSCOPE_RUN_TIMEOUT is 0"),
        ("QUEUE_TIMEOUT", "never", "BATCHSCOPE_QUEUE_TIMEOUT is 'never'"),
        ("BATCH_DELAY", "none", "BATCHSCOPE_BATCH_DELAY is 'none'"),
        ("LEDGER_MEMORY", "1KiB", "BATCHSCOPE_LEDGER_MEMORY is '1KiB': input should be greater than"),
        ("LEDGER_ITERATIONS", "10", "BATCHSCOPE_LEDGER_ITERATIONS is '10'"),
        ("LEDGER_DAYS", "0", "BATCHSCOPE_LEDGER_DAYS is '0'"),
    ],
)
def test_wrong_values(variable: str, value: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"BATCHSCOPE_{variable}", value)
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert part in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_command_with_a_wrong_setting_says_one_line_and_exits_with_1(tmp_path: Path) -> None:
    values = {
        "BATCHSCOPE_DATA_DIR": str(tmp_path),
        "BATCHSCOPE_PORT": "abc",
        "DJANGO_SETTINGS_MODULE": "playground.settings",
    }
    environment = {**os.environ, **values}
    command = [sys.executable, "manage.py", "check"]
    run = subprocess.run(command, cwd=PROJECT_FOLDER, env=environment, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.startswith("batchscope: BATCHSCOPE_PORT is 'abc'")
    assert run.stderr.count("\n") == 1


def test_values_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "KV_MEMORY": "2GiB",
        "KV_BLOCKS": "",
        "ALLOWED_HOSTS": "a.example, b.example",
        "HOST": "::1",
    }.items():
        monkeypatch.setenv(f"BATCHSCOPE_{name}", value)
    config = load_settings()
    assert config.engine_config().kv_memory == 2 << 30
    assert config.kv_blocks is None
    assert config.allowed_hosts == ("a.example", "b.example")
    assert config.base_url == "http://[::1]:8000"


def test_limits_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"QUEUE_TIMEOUT": "none", "RUN_TIMEOUT": "", "TOTAL_TIMEOUT": "90.5", "BATCH_SIZE": "None"}
    for name, value in {**values, "MAX_RUNNING_PER_USER": "3", "PREFIX_CACHING": "false"}.items():
        monkeypatch.setenv(f"BATCHSCOPE_{name}", value)
    config = load_settings().engine_config()
    assert (config.queue_timeout, config.run_timeout, config.total_timeout) == (None, 1800.0, 90.5)
    assert (config.batch_size, config.max_running_per_user, config.prefix_caching) == (None, 3, False)


def test_engine_settings_have_the_engines_defaults_and_a_services_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    from inference.config import EngineConfig

    monkeypatch.delenv("BATCHSCOPE_MODEL_CACHE", raising=False)
    limits = {"queue_timeout": 600.0, "run_timeout": 1800.0, "total_timeout": 3600.0}
    assert Settings().engine_config() == EngineConfig(**limits)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False),
     ("192.168.1.5", False), ("chat.example.org", False)],
)  # fmt: skip
def test_loopback(host: str, expected: bool) -> None:
    assert Settings(host=host).is_loopback is expected


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2", "SmolLM2-135M-Instruct"),
        ("/models/Big.gguf", "Big"),
        ("scripted:/a/file.json", "file"),
        ("/m/Llama/", "Llama"),
    ],
)
def test_the_models_name_is_no_path(model: str, name: str) -> None:
    assert Settings(model=model).model_name == name


def test_unknown_variables_are_named_with_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHSCOPE_PROT", "9")
    monkeypatch.setenv("BATCHSCOPE_KERNELS", "reference")
    assert unknown_variables() == {"BATCHSCOPE_PROT": "BATCHSCOPE_PORT"}


def test_databases() -> None:
    postgres = database_from_url("postgres://us%40er:p%2Fw@db.example:5433/chat")
    assert [postgres[key] for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT")] == [
        "chat", "us@er", "p/w", "db.example", "5433",
    ]  # fmt: skip
    assert database_from_url("sqlite:////var/lib/chat.db")["NAME"] == "/var/lib/chat.db"
    for url in ("postgres://host", "sqlite://host/path", "sqlite://", "postgres://h:port/n", "x"):
        with pytest.raises(DatabaseURLError):
            database_from_url(url)


def test_options_of_libpq_stand_in_the_url() -> None:
    database = database_from_url("postgres://chat@/chat?host=%2Frun%2FPG&sslmode=verify-full&connect_timeout=3")
    assert (database["HOST"], database["NAME"], database["USER"]) == ("", "chat", "chat")
    options = database["OPTIONS"]
    assert (options["host"], options["sslmode"], options["connect_timeout"]) == ("/run/PG", "verify-full", "3")


def test_without_the_driver_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("playground.database.find_spec", lambda name: None)
    monkeypatch.setenv("BATCHSCOPE_DATABASE_URL", "postgres://chat:secret@db.example/chat")
    with pytest.raises(SettingsError, match=r"BATCHSCOPE_DATABASE_URL can't be used: .*\.\[postgres\]") as raised:
        load_settings()
    assert "secret" not in str(raised.value)


def test_sqlite_is_set_for_many_writers() -> None:
    options = sqlite_database("chat.sqlite3")["OPTIONS"]
    assert options["transaction_mode"] == "IMMEDIATE"
    assert "journal_mode=WAL" in options["init_command"]


def test_the_secret_key_is_made_once_and_private(tmp_path: Path) -> None:
    folder = data_folder(tmp_path / "new" / "data")
    key = secret_key(folder)
    assert len(key) >= 50
    assert secret_key(folder) == key
    assert stat.S_IMODE((folder / "secret_key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name for path in folder.iterdir()] == ["secret_key"]
    assert secret_key(data_folder(tmp_path / "other")) != key


def test_a_damaged_key_or_an_impossible_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "secret_key").write_text("short")
    with pytest.raises(FirstStartError, match="damaged"):
        secret_key(tmp_path)
    with pytest.raises(FirstStartError, match="BATCHSCOPE_DATA_DIR"):
        data_folder(tmp_path / "secret_key" / "inside")


def test_the_ledger_has_a_folder_unless_it_has_no_disk(tmp_path: Path) -> None:
    assert Settings(data_dir=tmp_path).ledger_folder == tmp_path / "ledger"
    assert Settings(data_dir=tmp_path, ledger_disk=0).ledger_folder is None
