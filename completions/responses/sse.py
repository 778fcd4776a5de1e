"""Server-sent events: frames, keep-alives, and exactly one end.

OpenAI's client crashes when an event without data follows an `id:` line. So a keep-alive is one
comment line without a blank line after it, and only clients that ask for them get `id:` lines
(https://html.spec.whatwg.org/multipage/server-sent-events.html).
"""

from collections.abc import AsyncIterator
from typing import Any

import orjson
from django.http import StreamingHttpResponse

KEEP_ALIVE_INTERVAL = 10.0
"""Seconds without an event before a keep-alive."""
KEEP_ALIVE = b": keep-alive\n"
DONE = b"data: [DONE]\n\n"


def frame(data: dict[str, Any], event_id: int | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if event_id is None else b"id: %d\n" % event_id
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


def response(frames: AsyncIterator[bytes]) -> StreamingHttpResponse:
    """A response of frames as they come, with headers that keep proxies from buffering them."""
    return StreamingHttpResponse(
        frames,
        content_type="text/event-stream",
        headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"},
    )
