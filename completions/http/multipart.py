"""Multipart bodies, whose file names may be in any encoding.

A client sends a name as the bytes that its system has (RFC 7578, section 5.1). Django drops a part
whose head is not UTF-8, as if it had not been sent.
"""

from collections.abc import Mapping
from typing import IO, Any

from django.utils.http import parse_header_parameters
from rest_framework import parsers

_HEAD_BYTES = 1024
"""As many bytes as Django reads at first to find the end of a head."""


class MultiPartParser(parsers.MultiPartParser):
    """DRF's, with `?` for each byte of a part's head that is not UTF-8."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, object] | None = None,
    ) -> Any:
        boundary = parse_header_parameters(media_type or "")[1].get("boundary", "")
        if boundary and boundary.isascii():  # Django refuses others
            stream = _ReadableHeads(stream, boundary.encode())  # type: ignore[assignment]
        return super().parse(stream, media_type, parser_context)


class _ReadableHeads:
    """A multipart body with readable heads and as many bytes, read in pieces."""

    def __init__(self, stream: IO[bytes], boundary: bytes) -> None:
        self._stream = stream
        self._delimiter = b"--" + boundary
        self._held = b""
        """The end of what was read: perhaps the beginning of a delimiter, or part of a head."""

    def read(self, size: int) -> bytes:
        """Return some bytes, or none at the end."""
        while True:
            piece = self._stream.read(size)
            mended = self._mend(self._held + piece, is_last=not piece)
            if mended or not piece:
                return mended

    def _mend(self, data: bytes, is_last: bool) -> bytes:
        """Mend the heads in `data`. Unless it is the last, hold back its end."""
        pieces: list[bytes] = []
        done = 0
        while (begin := data.find(self._delimiter, done)) >= 0:
            longest = begin + len(self._delimiter) + _HEAD_BYTES
            end = data.find(b"\r\n\r\n", begin, longest)
            if end < 0 and not is_last and len(data) < longest:
                break
            end = end if end >= 0 else min(longest, len(data))
            pieces += data[done:begin], _to_utf8(data[begin:end])
            done = end
        if is_last:
            until = len(data)
        else:
            until = begin if begin >= 0 else max(done, len(data) - len(self._delimiter) + 1)
        self._held = data[until:]
        return b"".join((*pieces, data[done:until]))


def _to_utf8(text: bytes) -> bytes:
    """Return UTF-8 of the same length."""
    return text.decode(errors="surrogateescape").encode(errors="replace")
