"""Reads the input of a custom tool from the JSON arguments that hold it, as they arrive."""

import json
import re

from completions.chat.tools import INPUT

_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
# Without a group inside: before Python 3.11.5, `*+` keeps what a round that failed had read before
# one (https://github.com/python/cpython/issues/106052).
_BODY = re.compile(r'(?:[^"\\]|\\[^u]|\\u[0-9a-fA-F]{4})*+', re.DOTALL)
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class InputReader:
    """Reader of one call. However its arguments are cut, the joined pieces are the same."""

    def __init__(self) -> None:
        self._buffer = ""
        self._state = "before"

    def read(self, text: str) -> str:
        """Return the next piece of the input."""
        self._buffer += text
        if self._state == "before" and (match := _BEGIN.match(self._buffer)):
            self._buffer = self._buffer[match.end() :]
            self._state = "inside"
        return self._take() if self._state == "inside" else ""

    def finish(self) -> str:
        """Return what was held back. Arguments of another form are the input themselves."""
        if self._state == "before":
            return self._buffer
        return self._take(is_last=True) if self._state == "inside" else ""

    def _take(self, *, is_last: bool = False) -> str:
        body = _BODY.match(self._buffer)
        assert body is not None
        piece = body[0]
        may_go_on = not is_last and self._buffer[len(piece) :][:1] != '"'
        if may_go_on and (half := _HALF_PAIR.search(piece)):
            piece = piece[: half.start()]
        self._buffer = self._buffer[len(piece) :]
        if self._buffer.startswith('"'):
            self._state = "after"
        try:
            value = json.loads(f'"{piece}"', strict=False)
        except ValueError:  # an escape that JSON lacks
            return piece
        return str(value.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
