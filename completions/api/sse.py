"""Server-sent events: frames, keep-alives, and exactly one end.

The official client crashes when an event without data follows an `id:` line, so a keep-alive is one
comment line without a blank one after it, and `id:` lines are sent only to who asks for them
(https://html.spec.whatwg.org/multipage/server-sent-events.html).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, TypeVar

import orjson
from django.http import StreamingHttpResponse

KEEP_ALIVE_INTERVAL = 10.0
KEEP_ALIVE = b": keep-alive\n"
DONE = b"data: [DONE]\n\n"

_T = TypeVar("_T")


def frame(data: dict[str, Any], event_id: int | None = None) -> bytes:
    """One event."""
    head = b"" if event_id is None else b"id: %d\n" % event_id
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


def response(frames: AsyncIterator[bytes]) -> StreamingHttpResponse:
    """Frames as they come; no proxy may hold them back."""
    return StreamingHttpResponse(
        frames,
        content_type="text/event-stream",
        headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"},
    )


async def with_silences(
    source: AsyncGenerator[_T, None], interval: float = KEEP_ALIVE_INTERVAL
) -> AsyncGenerator[_T | None, None]:
    """What `source` yields, and None whenever it yielded nothing for `interval` seconds."""
    iterator = aiter(source)
    upcoming: asyncio.Task[_T] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(iterator))
            done, _ = await asyncio.wait({upcoming}, timeout=interval)
            if not done:
                yield None
                continue
            try:
                item = upcoming.result()
            except StopAsyncIteration:
                return
            upcoming = None
            yield item
    finally:
        if upcoming is not None:
            upcoming.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await upcoming
