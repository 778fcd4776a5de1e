"""Our server's extension of ASGI by which the reader of events writes to a stream's connection.

A stream's task wakes through six generators and Django's loop for each event, which costs more than
everything else that the web tier does with it.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from completions.http.body_writer import EXTENSION, BodyWriter


class ChunkWriter:
    """Writes parts of a body in chunks, as uvicorn's `send` does where it need not wait."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def can_write(self) -> bool:
        cycle = self._cycle
        return (
            cycle.response_started
            and bool(cycle.chunked_encoding)
            and not (cycle.response_complete or cycle.disconnected or cycle.flow.write_paused)
        )

    def write(self, part: bytes) -> None:
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))


def offer_body_writer(cycle: RequestResponseCycle) -> None:
    """Let the application of a request write parts of the response's body, unless a response to its
    method has none."""
    if cycle.scope["method"] != "HEAD":
        writer: BodyWriter = ChunkWriter(cycle)
        extensions: dict[str, Any] = {EXTENSION: writer}
        cycle.scope["extensions"] = extensions
