"""A request to the API has a thread only if it uses the database, and leaves it tidy."""

import asyncio
import threading

import pytest
from asgiref import sync
from asgiref.testing import ApplicationCommunicator
from django.core.signals import request_finished

from completions.api.health import HealthView
from project.handler import ASGIHandler


async def answer(path, method="GET"):
    """Status and body."""
    scope = {
        "type": "http", "method": method, "path": path, "query_string": b"", "headers": [],
        "http_version": "1.1", "scheme": "http", "server": ("test", 80),
    }  # fmt: skip
    client = ApplicationCommunicator(ASGIHandler(), scope)
    await client.send_input({"type": "http.request", "body": b""})
    start, body = await client.receive_output(10), b""
    while (message := await client.receive_output(10)).get("more_body"):
        body += message["body"]
    await client.wait(10)
    return start["status"], body + message.get("body", b"")


async def test_the_api_starts_no_thread_of_its_own(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a thread was started")

    monkeypatch.setattr(sync, "ThreadPoolExecutor", refuse)
    assert (await answer("/healthz"))[0] == 200


@pytest.mark.django_db(transaction=True)
async def test_a_thread_that_used_the_database_closes_its_connection():
    finished_in = []

    def note(**_):
        finished_in.append(threading.current_thread())

    request_finished.connect(note)
    try:
        assert (await answer("/readyz"))[0] in (200, 503)  # which asks for migrations
        assert (await answer("/healthz"))[0] == 200
    finally:
        request_finished.disconnect(note)
    of_database, without = finished_in
    assert of_database is not threading.main_thread()
    assert without is threading.main_thread()


async def test_a_client_that_hangs_up_cancels_the_view(monkeypatch):
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait_for_ever(self, request):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    monkeypatch.setattr(HealthView, "get", wait_for_ever)
    scope = {
        "type": "http", "method": "GET", "path": "/healthz", "query_string": b"", "headers": [],
    }  # fmt: skip
    client = ApplicationCommunicator(ASGIHandler(), scope)
    await client.send_input({"type": "http.request", "body": b""})
    async with asyncio.timeout(10):
        await begun.wait()
        await client.send_input({"type": "http.disconnect"})
        await cancelled.wait()
    await client.wait(10)
    assert await client.receive_nothing()
