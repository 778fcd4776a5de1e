"""Many streams at once over bare sockets: a full client would cost more than the service."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from benchmarks.service.scripted_worker import token

_PATIENCE = 1800.0


@dataclass
class Stream:
    """One stream as its client sees it; times in seconds."""

    organization: str
    status: int = 0
    code: str = ""
    retry_after: bool = False
    first: float | None = None
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    whole: bool = False
    ended: bool = False
    """Whether its connection was closed, for whatever reason."""

    @property
    def events(self) -> int:
        return len(self.gaps) + (self.first is not None)


@dataclass(frozen=True, slots=True)
class Caller:
    """Where the streams are requested, and with which parameters."""

    port: int
    model: str
    tokens: int
    scripted: bool
    """Whether the worker is scripted, so that the right tokens are known."""
    token_ids: bool = True
    """Whether chunks have token ids, which tell whether a stream is whole."""

    def request(self, key: str, number: int) -> bytes:
        content = orjson.dumps(
            {
                "model": self.model,
                "prompt": [7, 7 + number % 900],
                "max_tokens": self.tokens,
                "seed": number,
                "stream": True,
                "return_token_ids": self.token_ids,
                "ignore_eos": True,
            }
        )
        return (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n"
            b"\r\n%b" % (key.encode(), len(content), content)
        )


class _Exchange(asyncio.Protocol):
    """Sends a request and follows its answer line by line."""

    def __init__(self, request: bytes, stream: Stream, ended: "asyncio.Future[None]") -> None:
        self._request = request
        self._stream = stream
        self._ended = ended
        self._rest = b""
        self._began = self._last = time.monotonic()
        self.numbers: list[int] = []
        self.ids: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._take(self._rest)
        self._stream.ended = True
        if not self._ended.done():
            self._ended.set_result(None)

    def _take(self, line: bytes) -> None:
        if line.startswith((b"data: {", b'{"error"')):
            self._event(orjson.loads(line.removeprefix(b"data: ")))
        elif line.startswith(b"HTTP/1.1 "):
            self._stream.status = int(line.split()[1])
        elif line.lower().startswith(b"retry-after:"):
            self._stream.retry_after = True

    def _event(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self._stream.code = chunk["error"]["code"]
            return
        now = time.monotonic()
        if self._stream.first is None:
            self._stream.first = now - self._began
        else:
            self._stream.gaps.append(now - self._last)
        self._last = now
        self.numbers.append(chunk["sequence_number"])
        self.ids += chunk["choices"][0]["token_ids"]
        self._stream.tokens = len(self.ids)


async def _follow(caller: Caller, stream: Stream, key: str, number: int) -> None:
    loop = asyncio.get_running_loop()
    exchange = _Exchange(caller.request(key, number), stream, ended := loop.create_future())
    try:
        async with asyncio.timeout(_PATIENCE):
            await loop.create_connection(lambda: exchange, "127.0.0.1", caller.port)
            await ended
    except OSError as error:
        stream.code, stream.ended = type(error).__name__, True
    ids, numbers, most = exchange.ids, exchange.numbers, caller.tokens
    right = not caller.scripted or ids == [token(number, 0, k) for k in range(most)]
    gapless = numbers == list(range(1, len(numbers) + 1))
    stream.whole = len(ids) == most and gapless and right


async def crowd(
    caller: Caller,
    wanted: Sequence[tuple[str, str]],
    look: Callable[[list[Stream]], None] = lambda streams: None,
    interval: float = 0.25,
) -> list[Stream]:
    """Run one stream per (organization, key); all start at once, in that order.

    `look` is called every `interval` seconds with the streams as they are then.
    """
    streams = [Stream(organization) for organization, _ in wanted]
    running = asyncio.gather(
        *(
            _follow(caller, stream, key, number)
            for number, (stream, (_, key)) in enumerate(zip(streams, wanted, strict=True))
        )
    )
    while not running.done():
        await asyncio.wait({running}, timeout=interval)
        look(streams)
    await running
    return streams


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
