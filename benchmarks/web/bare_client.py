"""An HTTP client that costs next to nothing, since it shares the cores of what it measures.

Real clients run on other machines. A request is one write on a connection of its own; the answer is
everything received until the connection closes. Nothing is parsed before the clock has stopped.
"""

import asyncio
from typing import Any, cast

import orjson


class _Exchange(asyncio.Protocol):
    """Sends a request and keeps what it receives."""

    def __init__(self, request: bytes, ended: "asyncio.Future[None]") -> None:
        self._request = request
        self._ended = ended
        self.received: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(exc)


class BareClient:
    """Posts JSON to one server with one key."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._head = (
            f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
        )

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        """Return the whole response as received, including head and chunk sizes."""
        loop = asyncio.get_running_loop()
        content = orjson.dumps(body)
        head = f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(content)}\r\n\r\n"
        exchange = _Exchange(head.encode() + content, ended := loop.create_future())
        await loop.create_connection(lambda: exchange, "127.0.0.1", self._port)
        async with asyncio.timeout(600):
            await ended
        return b"".join(exchange.received)
