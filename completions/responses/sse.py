"""Server-sent events: frames, keep-alives, and exactly one end.

OpenAI's client crashes on an event that has an id but no data. So a keep-alive is a single `:` line
without the blank line that would end an event, and only clients that ask for them get `id:` lines
(https://html.spec.whatwg.org/multipage/server-sent-events.html).
"""

import hashlib
from collections.abc import AsyncIterator, Mapping

from django.http import StreamingHttpResponse

from completions.contract.strict_json import encode_line

KEEP_ALIVE_INTERVAL = 10.0
"""Seconds without an event before a keep-alive."""
KEEP_ALIVE = b": keep-alive\n"
DONE = b"data: [DONE]\n\n"
BLOCK = 64
"""Chunks are padded to a multiple of this many bytes."""


def make_frame(data: dict[str, object], event_id: int | None = None, event: str = "") -> bytes:
    """Return one server-sent event, whose type is `event` if it has one."""
    head = b"" if event_id is None else b"id: %d\n" % event_id
    if event:
        head += b"event: %b\n" % event.encode()
    return b"%bdata: %b\n\n" % (head, encode_line(data))


def make_response(frames: AsyncIterator[bytes]) -> StreamingHttpResponse:
    """Return a response of frames as they come, with headers that keep proxies from buffering
    them."""
    return StreamingHttpResponse(
        frames,
        content_type="text/event-stream",
        headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"},
    )


def make_obfuscation(chunk: Mapping[str, object]) -> str:
    """Return the field `make_obfuscation`, which pads a chunk's JSON to a multiple of BLOCK bytes,
    so that the sizes of an encrypted stream's packets reveal little. It depends only on the chunk,
    so a stream that is read again is the same."""
    text = encode_line({**chunk, "obfuscation": ""})
    return hashlib.shake_256(text).hexdigest(BLOCK)[: -len(text) % BLOCK]
