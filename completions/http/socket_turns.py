"""What the responses of a WebSocket connection go on from, beside stored ones: the latest, if it
was made with `store: false`. The process holds it, and nothing else does."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import orjson
from django.http import HttpRequest

from completions.exceptions import APIError
from completions.models.conversations import Item

TURNS_EXTENSION: Final = "quire.turns"
"""The name of the ASGI extension of requests that came as events; its value is SocketTurns."""
CREATE: Final = "response.create"
"""The type of the only event that clients send."""
MAX_KEPT_BYTES: Final = 256 * 1024**2
"""Of all connections of a process. Beyond it, the oldest turn is forgotten."""


class KeptTurns:
    """The items of conversations as JSON, by the last response's id."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._by_id: OrderedDict[str, bytes] = OrderedDict()

    def get(self, response_id: str) -> bytes | None:
        return self._by_id.get(response_id)

    def put(self, response_id: str, items: bytes) -> None:
        self.drop(response_id)
        self._by_id[response_id] = items
        self._bytes += len(items)
        while self._bytes > self._max_bytes:
            self.drop(next(iter(self._by_id)))

    def drop(self, response_id: str) -> None:
        self._bytes -= len(self._by_id.pop(response_id, b""))


class OpenSockets:
    """Counts the open connections of each API key: an idle one costs memory and a file descriptor,
    and no other limit counts it."""

    def __init__(self, max_per_key: int) -> None:
        self._max_per_key = max_per_key
        self._by_key: Counter[int] = Counter()

    @contextmanager
    def hold(self, key_id: int) -> Iterator[None]:
        """Count a connection of the key while it is open. Raises APIError if it has too many."""
        if self._by_key[key_id] >= self._max_per_key:
            message = (
                f"This API key has {self._max_per_key} WebSocket connections open, which is the "
                "most that one web process serves. Close one, or send requests over HTTP."
            )
            raise APIError("too_many_web_sockets", message)
        self._by_key[key_id] += 1
        try:
            yield
        finally:
            self._by_key[key_id] -= 1
            if not self._by_key[key_id]:
                del self._by_key[key_id]


class SocketTurns:
    """The latest turn of one connection."""

    def __init__(self, kept: KeptTurns) -> None:
        self._kept = kept
        self._latest = ""
        self._goes_on = False
        self._asked: Sequence[Item] | None = None
        self.earlier: Sequence[Item] = ()
        """The items before those of the request."""

    def find(self, response_id: str) -> bytes | None:
        """Return the items up to the end of this response, as JSON, if it is the latest one and was
        not stored."""
        self._goes_on = response_id == self._latest
        return self._kept.get(response_id) if self._goes_on else None

    def keep_asked(self, items: Sequence[Item]) -> None:
        """Note the items of a request whose response is to be kept here."""
        self._asked = [*self.earlier, *items]

    def end(self, response: Mapping[str, Any] | None) -> None:
        """Keep a response that has ended instead of the one before. None for a request that failed:
        what it went on from is forgotten, as Open Responses says."""
        if response is not None or self._goes_on:
            self.forget()
        if response is not None and self._asked is not None:
            self._latest = response["id"]
            self._kept.put(self._latest, orjson.dumps([*self._asked, *response["output"]]))
        self._asked, self.earlier, self._goes_on = None, (), False

    def forget(self) -> None:
        self._kept.drop(self._latest)
        self._latest = ""


def find_turns(request: HttpRequest) -> SocketTurns | None:
    """Return the turns of the connection whose event a request is, or None for other requests."""
    scope = getattr(request, "scope", {})  # ASGI's
    turns: SocketTurns | None = (scope.get("extensions") or {}).get(TURNS_EXTENSION)
    return turns


def read_event(body: object) -> None:
    """Turn a client's event into the body of a request for a stream. Raises APIError."""
    if type(body) is not dict:
        return  # refused as any other body
    if (kind := body.pop("type", None)) != CREATE:
        message = f"type: {str(kind)[:100]!r} is no event that this server takes. Send {CREATE!r}."
        raise APIError("unsupported_value", message, "type")
    if body.get("stream") not in (None, True):
        raise _refuse("stream", "a WebSocket always carries a stream")
    if body.get("background"):
        raise _refuse("background", "send the request over HTTP")
    if body.pop("generate", True) is not True:
        raise _refuse("generate", "this server prepares nothing for later responses")
    body["stream"] = True


def _refuse(name: str, reason: str) -> APIError:
    return APIError("unsupported_value", f"{name}: {reason}. Leave it out.", name)
