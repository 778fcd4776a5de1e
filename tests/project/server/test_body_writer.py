"""Parts of a body that are written past the application's task."""

import asyncio

import pytest
from django.urls import path
from uvicorn.config import Config
from uvicorn.server import ServerState

from completions.http.base import AsyncAPIView
from completions.http.bodies import WRITER_EXTENSION
from project.server.handler import ASGIHandler
from project.server.http_protocol import Protocol
from tests.project.server.transport import Transport
from tests.running import until


class Exchange:
    """A request through the server's protocol to an application that goes on when told so."""

    def __init__(self, method="GET", version="1.1"):
        self.may_start, self.may_end = asyncio.Event(), asyncio.Event()
        self.offered = None
        config = Config(self.run, interface="asgi3", lifespan="off", log_config=None)
        config.load()
        self.protocol, self.transport = Protocol(config, ServerState(), {}), Transport()
        self.protocol.connection_made(self.transport)
        head = f"{method} /a HTTP/{version}\r\nHost: a\r\n\r\n"
        self.protocol.data_received(head.encode())

    async def run(self, scope, _receive, send):
        self.offered = scope.get("extensions", {})
        await self.may_start.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"sent", "more_body": True})
        await self.may_end.wait()
        await send({"type": "http.response.body", "body": b"end"})

    async def begin(self):
        """Let the application send the head, and return the writer."""
        await until(lambda: self.offered is not None)
        self.may_start.set()
        await until(lambda: b"sent" in self.transport.written)
        return self.offered[WRITER_EXTENSION]


@pytest.fixture
def make_exchange():
    made = []

    def make(*args):
        made.append(Exchange(*args))
        return made[-1]

    yield make
    for exchange in made:
        exchange.protocol.connection_lost(None)
        exchange.may_start.set()
        exchange.may_end.set()


async def test_parts_look_as_if_they_were_sent(make_exchange):
    exchange = make_exchange()
    await until(lambda: exchange.offered is not None)
    assert not exchange.offered[WRITER_EXTENSION].can_write()  # before the head
    writer = await exchange.begin()
    assert writer.can_write()
    writer.write(b"written part")
    exchange.may_end.set()
    await until(lambda: b"end" in exchange.transport.written)
    _, _, body = exchange.transport.written.partition(b"\r\n\r\n")
    assert body == b"4\r\nsent\r\nc\r\nwritten part\r\n3\r\nend\r\n0\r\n\r\n"
    assert not writer.can_write()


async def test_nothing_is_written_to_a_client_that_does_not_read(make_exchange):
    exchange = make_exchange()
    writer = await exchange.begin()
    exchange.protocol.pause_writing()
    assert not writer.can_write()
    exchange.protocol.resume_writing()
    assert writer.can_write()


async def test_nothing_is_written_after_a_hang_up(make_exchange):
    exchange = make_exchange()
    writer = await exchange.begin()
    exchange.protocol.connection_lost(None)
    assert not writer.can_write()


@pytest.mark.parametrize(("method", "version"), [("HEAD", "1.1"), ("GET", "1.0")])
async def test_only_a_body_of_chunks_has_a_writer(make_exchange, method, version):
    exchange = make_exchange(method, version)
    await until(lambda: exchange.offered is not None)
    assert WRITER_EXTENSION not in exchange.offered


class _Views:
    """A URL table with a view of the API and a page."""

    offered: dict[str, bool] = {}

    class View(AsyncAPIView):
        authenticated = False

        async def get(self, request):
            from django.http import HttpResponse

            _Views.offered[request.path] = request.body_writer is not None
            return HttpResponse()

    urlpatterns = [path("v1/seen", View.as_view()), path("page", View.as_view())]


async def test_middleware_sees_all_of_a_page(settings):
    settings.ROOT_URLCONF = _Views
    settings.MIDDLEWARE = []
    for name in ("/v1/seen", "/page"):
        done = asyncio.Event()
        handler = ASGIHandler()

        async def application(scope, receive, send, handler=handler, done=done):
            await handler(scope, receive, send)
            done.set()

        config = Config(application, lifespan="off", log_config=None)
        config.load()
        protocol = Protocol(config, ServerState(), {"process": None})
        protocol.connection_made(Transport())
        protocol.data_received(f"GET {name} HTTP/1.1\r\nHost: testserver\r\n\r\n".encode())
        await asyncio.wait_for(done.wait(), 30)
        protocol.connection_lost(None)
    assert _Views.offered == {"/v1/seen": True, "/page": False}
