"""docs/accounts.md says what is so: its commands run, its settings, groups and scopes are those that there are."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command, get_commands, load_command_class

from playground.access import attempts, limits
from playground.access.groups import PERMISSIONS
from playground.config import PREFIX, Settings
from playground.models import SCOPES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "accounts.md").read_text()
COMMANDS = [shlex.split(line)[2:] for line in re.findall(r"^python manage\.py .+$", TEXT, re.MULTILINE)]
ASKS = {"createsuperuser", "changepassword"}  # for a password, on a terminal


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_its_commands_run(words: list[str], alice: User) -> None:
    name, *options = words
    if name in ASKS:
        command = load_command_class(get_commands()[name], name)
        command.create_parser("manage.py", name).parse_args(options)
        return
    out = io.StringIO()
    call_command(name, *options, stdout=out)
    assert re.match("bs-|http://", out.getvalue().splitlines()[-1])


def test_there_are_commands() -> None:
    assert {words[0] for words in COMMANDS} == {"loginlink", "createkey", *ASKS}


def test_its_settings_have_these_defaults() -> None:
    settings = Settings()
    for name, default in re.findall(rf"`{PREFIX}(\w+)`, (\d+) \|", TEXT):
        assert getattr(settings, name.lower()) == int(default)
    for name in re.findall(rf"`{PREFIX}(\w+)`", TEXT):
        assert name.lower() in Settings.model_fields


def test_its_tables_are_whole() -> None:
    first_cells = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    assert first_cells == [*PERMISSIONS, *SCOPES]


def test_its_numbers_are_those_of_the_code() -> None:
    assert (attempts.MOST, attempts.SECONDS, limits.REMEMBERED) == (10, 60, 5.0)
