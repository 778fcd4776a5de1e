"""Names and signatures of Django, asgiref, uvicorn, httptools and WhiteNoise that project/server
relies on.

If one of these tests fails after an upgrade, read the override that uses the name before you change
the expectation: the library's own code may do by now what the override does.
"""

import inspect
from types import SimpleNamespace
from typing import Any

import httptools
import pytest
from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.core.handlers import asgi
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin
from pytest_django.fixtures import Settings
from uvicorn.config import Config
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from whitenoise.middleware import WhiteNoiseMiddleware

from project.server.handler import _APIHandler
from tests.project.server.transport import Transport

PARAMETERS = {
    asgi.ASGIHandler.__call__: "self scope receive send",
    asgi.ASGIHandler.load_middleware: "self is_async",
    asgi.ASGIHandler.handle: "self scope receive send",
    asgi.ASGIHandler.read_body: "self receive",
    asgi.ASGIHandler.create_request: "self scope body_file",
    asgi.ASGIHandler.run_get_response: "self request",
    asgi.ASGIHandler.send_response: "self response send",
    asgi.ASGIHandler.listen_for_disconnect: "self receive",
    asgi.ASGIRequest.__init__: "self scope body_file",
    HttpRequest._set_content_type_params: "self meta",
    WhiteNoiseMiddleware.__call__: "self request",
    WhiteNoiseMiddleware.serve: "static_file request",
    HttpToolsProtocol.connection_made: "self transport",
    HttpToolsProtocol.connection_lost: "self exc",
    HttpToolsProtocol.data_received: "self data",
    HttpToolsProtocol.on_message_begin: "self",
    HttpToolsProtocol.on_header: "self name value",
    HttpToolsProtocol.on_headers_complete: "self",
    HttpToolsProtocol.on_body: "self body",
    HttpToolsProtocol.on_message_complete: "self",
    HttpToolsProtocol.on_response_complete: "self",
    HttpToolsProtocol.send_400_response: "self msg",
    HttpToolsProtocol.shutdown: "self",
    HttpToolsProtocol.handle_websocket_upgrade: "self",
    HttpToolsProtocol._should_upgrade: "self",
    WebSocketsSansIOProtocol.__init__: "self config server_state app_state _loop",
    WebSocketsSansIOProtocol.shutdown: "self",
    HttpToolsProtocol._start_asgi_task: "self cycle app",
    HttpToolsProtocol._unset_keepalive_if_required: "self",
}
"""Methods that are overridden or called, with the names of their parameters."""


@pytest.mark.parametrize("method", PARAMETERS, ids=lambda method: method.__qualname__)
def test_methods_take_these_parameters(method: Any) -> None:
    assert list(inspect.signature(method).parameters) == PARAMETERS[method].split()


def test_a_handler_without_middleware_is_that_of_the_api(settings: Settings) -> None:
    settings.MIDDLEWARE = []
    plain, ours = asgi.ASGIHandler(), _APIHandler()
    for name in vars(plain).keys() - {"_middleware_chain"}:
        assert list(getattr(ours, name)) == getattr(plain, name) == []
    for each in (plain, ours):
        assert each._middleware_chain.__wrapped__ == each._get_response_async


def test_middleware_still_needs_a_thread() -> None:
    """The reason why the API has no middleware."""
    source = inspect.getsource(MiddlewareMixin.__acall__)
    assert "sync_to_async" in source
    assert not getattr(WhiteNoiseMiddleware, "async_capable", False)


def test_django_still_closes_responses_in_a_thread() -> None:
    """The reason for our handler."""
    source = inspect.getsource(asgi.ASGIHandler.handle)
    assert "sync_to_async(response.close)" in source
    assert "request_started.asend" in source


def test_a_response_keeps_what_it_has_to_close() -> None:
    assert HttpResponse()._resource_closers == []  # type: ignore[attr-defined]
    assert "in self._resource_closers" in inspect.getsource(HttpResponse.close)


async def test_a_thread_is_registered_under_its_context() -> None:
    async with ThreadSensitiveContext() as context:
        assert context not in SyncToAsync.context_to_thread_executor
        await SyncToAsync(lambda: None, thread_sensitive=True)()
        assert context in SyncToAsync.context_to_thread_executor


async def test_a_connection_has_these_attributes() -> None:
    config = Config(lambda: None, lifespan="off", log_config=None)
    config.load()
    protocol = HttpToolsProtocol(config, ServerState(), {})
    assert config.reset_contextvars is False
    assert protocol.cycle is None
    assert not protocol.pipeline
    protocol.connection_made(Transport())  # type: ignore[arg-type]
    assert isinstance(protocol.transport, Transport)
    assert {"pause_reading", "resume_reading"} <= set(dir(protocol.flow))
    assert protocol.flow.write_paused is False
    protocol.connection_lost(None)


async def test_httptools_still_leaves_a_body_to_the_other_protocol() -> None:
    """The reason for our parser."""
    config = Config(lambda: None, lifespan="off", log_config=None)
    config.load()
    protocol = HttpToolsProtocol(config, ServerState(), {})
    protocol.on_headers_complete = lambda: None  # type: ignore[method-assign]
    protocol.on_message_complete = lambda: None  # type: ignore[method-assign]
    head = b"POST /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as upgrade:
        protocol.parser.feed_data(head + b"ab")
    assert upgrade.value.args == (len(head),)
    assert protocol.url == b"/a"
    assert protocol.headers[1:] == [(b"upgrade", b"h2c"), (b"content-length", b"2")]


def test_a_cycle_has_these_attributes() -> None:
    parameters = inspect.signature(RequestResponseCycle).parameters
    assert {"scope", "transport", "flow", "message_event"} <= parameters.keys()
    made = RequestResponseCycle(**dict.fromkeys(parameters, SimpleNamespace()))
    assert (made.disconnected, made.response_started, made.response_complete) == (False,) * 3
    assert (made.chunked_encoding, made.expected_content_length) == (None, 0)
    assert hasattr(made, "waiting_for_100_continue")
    assert httptools_impl.STATUS_LINE[431].startswith(b"HTTP/1.1 431 ")
