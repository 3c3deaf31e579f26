"""The pages of the APIs: who may see them, that what they load is here, and that nothing in them breaks the policy."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import Client

PAGES = ["/docs/api/", "/docs/websocket/"]


@pytest.mark.parametrize("path", PAGES)
def test_what_a_page_loads_is_served_from_here(path: str, client: Client, alice: User) -> None:
    client.force_login(alice)
    html = client.get(path).content.decode()
    loaded = re.findall(r'<(?:script|link)[^>]* (?:src|href)="([^"]+)"', html)
    assert len(loaded) >= 5
    assert all(address.startswith("/static/") for address in loaded)
    packaged = [address.removeprefix("/static/") for address in loaded if not address.startswith("/static/dist/")]
    assert packaged
    assert [name for name in packaged if finders.find(name) is None] == []


@pytest.mark.parametrize("path", PAGES)
def test_nothing_that_the_policy_forbids(path: str, client: Client, alice: User) -> None:
    client.force_login(alice)
    html = client.get(path).content.decode()
    assert re.findall(r"<script(?![^>]* src=)|<style| style=| on\w+=|https?://(?!www\.w3\.org/)", html) == []


@pytest.mark.parametrize("path", [*PAGES, "/docs/", "/asyncapi.json"])
def test_for_those_with_an_account_and_by_get_only(path: str, client: Client, alice: User) -> None:
    stranger = client.get(path)
    assert (stranger.status_code, stranger["Location"]) == (302, f"/login/?next={path}")
    client.force_login(alice)
    assert client.post(path).status_code == 405


def test_the_menu_of_every_page_leads_here(client: Client, alice: User) -> None:
    client.force_login(alice)
    html = client.get("/").content.decode()
    assert [path for path in PAGES if f'href="{path}"' in html] == PAGES
    assert client.get("/docs/")["Location"] == "/docs/api/"
    client.logout()
    assert "/docs/" not in client.get("/login/").content.decode()
