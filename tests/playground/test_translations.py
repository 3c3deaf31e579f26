"""Every word that the server side says has its Chinese, and the pages speak it once the catalogue is compiled."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from django.test import Client
from django.utils.translation import trans_real
from support.translations import ROOT, marked

FILE = ROOT / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po"


def catalogue() -> Any:
    return read_po(io.BytesIO(FILE.read_bytes()), abort_invalid=True)


def test_every_marked_word_has_its_translation_and_no_other_is_there() -> None:
    ids: set[str] = set()
    for message in catalogue():
        if message.id:
            assert message.string, message.id
            assert not message.fuzzy, message.id
            ids.update([message.id] if isinstance(message.id, str) else message.id)
    assert ids == marked()


def test_translations_keep_their_placeholders() -> None:
    assert [str(error) for message in catalogue() for error in message.check(catalogue())] == []


@pytest.fixture
def forget_catalogues() -> Any:
    trans_real._translations = {}
    trans_real._active = trans_real.Local()
    yield
    trans_real._translations = {}
    trans_real._active = trans_real.Local()


def test_a_page_in_chinese(db: None, tmp_path: Path, settings: Any, forget_catalogues: Any) -> None:
    folder = tmp_path / "zh_Hans" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    with (folder / "django.mo").open("wb") as file:
        write_mo(file, catalogue())
    settings.LOCALE_PATHS = [tmp_path]
    html = Client().get("/login/", headers={"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.5"}).content.decode()
    assert "登录" in html
    assert "Sign in" not in html


def test_without_a_compiled_catalogue_pages_are_english(
    db: None, tmp_path: Path, settings: Any, forget_catalogues: Any
) -> None:
    settings.LOCALE_PATHS = [tmp_path]
    answer = Client().get("/login/", headers={"Accept-Language": "zh-CN"})
    assert answer.status_code == 200
    assert "Sign in" in answer.content.decode()
