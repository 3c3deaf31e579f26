"""Which threads keep their connection to the database from call to call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from channels.db import database_sync_to_async
from django.contrib.auth.models import User
from django.core.signals import request_finished
from django.db import connection

pytestmark = pytest.mark.django_db(transaction=True)


def on_a_loop_of_its_own(work: Callable[[], Awaitable[None]]) -> None:
    """In a thread and a context of its own: what other tests left in theirs decides nothing here."""

    async def run() -> None:
        await work()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: asyncio.run(run())).result()


def look() -> object:
    """The connection of this thread, after a question."""
    assert User.objects.count() == 0
    return connection.connection


def begin_anew() -> None:
    """A connection is kept for some seconds; this thread's may be of an earlier test."""
    connection.close()


def left() -> object:
    return connection.connection


@pytest.mark.skipif("postgres" in connection.vendor, reason="PostgreSQL's connections are a pool's")
def test_the_thread_of_sockets_and_programs_keeps_it() -> None:
    async def work() -> None:
        await database_sync_to_async(begin_anew)()
        first = await database_sync_to_async(look)()
        await request_finished.asend(sender=None)  # of a program's call
        assert first is await database_sync_to_async(look)()

    on_a_loop_of_its_own(work)


def test_the_thread_of_a_page_does_not() -> None:
    async def work() -> None:
        async with ThreadSensitiveContext():
            assert await sync_to_async(look)() is not None
            await request_finished.asend(sender=None)
            assert await sync_to_async(left)() is None

    on_a_loop_of_its_own(work)
