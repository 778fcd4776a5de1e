"""Server-sent events: frames, keep-alives, and exactly one end.

The official client crashes when an event without data follows an `id:` line, so a keep-alive is one
comment line without a blank one after it, and `id:` lines are sent only to who asks for them
(https://html.spec.whatwg.org/multipage/server-sent-events.html).
"""

from collections.abc import AsyncIterator
from typing import Any

import orjson
from django.http import StreamingHttpResponse

KEEP_ALIVE_INTERVAL = 10.0
KEEP_ALIVE = b": keep-alive\n"
DONE = b"data: [DONE]\n\n"


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
