"""Parts of a response's body that are written outside of its view."""

from typing import Protocol

from django.http import HttpRequest

EXTENSION = "quire.body"
"""The name of the ASGI extension of our server whose value is a BodyWriter."""


class BodyWriter(Protocol):
    """What writes to the body of one response at once: without the task that answers the request,
    and the layers between it and the connection. What the task has sent must have been written."""

    def can_write(self) -> bool:
        """Return whether :meth:`write` may be called now: the head was sent, the body has not
        ended, and the client reads."""
        ...

    def write(self, part: bytes) -> None: ...


def find_body_writer(request: HttpRequest) -> BodyWriter | None:
    """Return the writer of a request's response, if its server has one and the response can have
    parts."""
    scope = request.scope  # type: ignore[attr-defined] # ASGI's
    writer: BodyWriter | None = (scope.get("extensions") or {}).get(EXTENSION)
    return writer
