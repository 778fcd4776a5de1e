"""Headers and query parameters that modify a request. RFC 7240 defines the header Prefer."""

import re
from dataclasses import dataclass

from rest_framework.request import Request

from completions.exceptions import invalid_parameter

META_HEADER = "x-include-meta"
_WAIT = re.compile(r"wait=\"?([0-9]{1,6})\"?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Preferences:
    """The preferences that Quire supports. Others are ignored (RFC 7240)."""

    respond_async: bool = False
    wait: float = 0.0
    """Seconds to wait before answering 202."""
    meta: bool = False
    """Whether the response reports how the request was run."""

    @classmethod
    def from_request(cls, request: Request) -> "Preferences":
        parts = [part.strip() for part in request.META.get("HTTP_PREFER", "").split(",")]
        waits = [match for part in parts if (match := _WAIT.match(part))]
        return cls(
            respond_async=any(part.lower() == "respond-async" for part in parts),
            wait=float(waits[0][1]) if waits else 0.0,
            meta=wants_meta(request),
        )


def read_flag(request: Request, name: str) -> bool:
    """Read a query parameter that is `true`, `1`, `false`, `0` or absent."""
    text = request.query_params.get(name) if request.META["QUERY_STRING"] else None
    return _parse_boolean(text, name)


def wants_meta(request: Request) -> bool:
    """Return whether the header x-include-meta is `true` or `1`."""
    return _parse_boolean(request.META.get("HTTP_X_INCLUDE_META"), META_HEADER)


def _parse_boolean(text: str | None, name: str) -> bool:
    word = "false" if text is None else text.lower()
    if word not in ("true", "1", "false", "0"):
        raise invalid_parameter(name, word, "true or false")
    return word in ("true", "1")


def read_seconds(request: Request, name: str, most: float) -> float:
    """Read a query parameter in seconds, capped at `most`; 0 when absent."""
    text = request.query_params.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text):
        raise invalid_parameter(name, text, "a number of seconds")
    return min(float(text), most)


def read_cursor(request: Request) -> int:
    """Read the sequence number after which the stream continues; -1 for the whole stream."""
    for name, text in (
        ("starting_after", request.query_params.get("starting_after")),
        ("Last-Event-ID", request.headers.get("Last-Event-ID")),
    ):
        if text is not None:
            if not re.fullmatch(r"[0-9]{1,15}", text):
                raise invalid_parameter(name, text, "a sequence number")
            return int(text)
    return -1
