"""The lines of an input file, read in groups, and the envelope around each line's body."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

from django.conf import settings

from completions.contract import strict_json
from completions.database.parts import portions
from completions.requests.preparation import ROUTES

MAX_CUSTOM_ID = 512
"""Characters."""
MAX_GROUP_LINES = 100
MAX_GROUP_BYTES = 4 * 1024 * 1024
"""Limits of a group of lines, which are validated and stored together."""
_FIRST_LINES = 1000
"""Lines that are read to find the first one that is not blank."""
_KEYS = ("custom_id", "method", "url", "body")
_WHITESPACE = " \t\r\n"
"""What JSON ignores around a value (RFC 8259, section 2). `str.strip` removes more, U+2028 too."""


@dataclass(eq=False)
class LineError(Exception):
    """A malformed line, which fails the whole file."""

    code: str
    """A code from the table of errors, `completions/contract/error_codes.py`."""
    message: str
    param: str | None = None
    """The path of the invalid value."""
    line: int | None = None
    """None if the file as a whole is invalid."""


def split_lines(content: IO[bytes]) -> Iterator[bytes]:
    """Iterate over the lines of a JSONL file. Only a line feed ends one. Django's files, iterated,
    end lines at carriage returns too, which JSON takes for spaces."""
    return iter(content.readline, b"")


def decode_line(line: bytes) -> str:
    """Decode the JSON text of a line. Raises UnicodeDecodeError."""
    return line.decode("utf-8-sig").strip(_WHITESPACE)


def is_blank(line: bytes) -> bool:
    return not line.strip(_WHITESPACE.encode())


def infer_endpoint(content: IO[bytes]) -> str:
    """Return the url of the first line that is not blank; any endpoint if that is none. Validation
    explains what is wrong with such a line."""
    read = iter(lambda: content.readline(settings.MAX_BODY_BYTES), b"")
    with suppress(ValueError, KeyError, TypeError, StopIteration, RecursionError):
        line = next(line for line in islice(read, _FIRST_LINES) if not is_blank(line))
        url = strict_json.loads(decode_line(line))["url"]
        if url in ROUTES:
            return str(url)
    return next(iter(ROUTES))


def groups(numbered: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Group lines, within MAX_GROUP_LINES and MAX_GROUP_BYTES."""
    return portions(numbered, MAX_GROUP_LINES, MAX_GROUP_BYTES, lambda line: len(line[1]))


def parse(text: bytes, endpoint: str) -> dict[str, Any]:
    """Parse a line and check its keys. Raises LineError."""
    try:
        request = strict_json.loads(decode_line(text))
    except UnicodeDecodeError as error:
        raise LineError("invalid_json_line", f"Not UTF-8 (byte {error.start}).") from error
    except strict_json.StrictJSONError as error:
        raise LineError("invalid_json_line", f"Not valid JSON: {error}.") from error
    if not isinstance(request, dict):
        raise LineError("invalid_json_line", "It must be a JSON object.")
    for name in request:
        if name not in _KEYS:
            message = f"{name[:64]}: there is no such key; a line has {', '.join(_KEYS)}."
            raise LineError("unknown_parameter", message, name[:64])
    for name in _KEYS:
        if request.get(name) is None:
            raise LineError("missing_required_parameter", f"{name}: this key is required.", name)
    _check_values(request, endpoint)
    return request


def _check_values(request: dict[str, object], endpoint: str) -> None:
    custom_id = request["custom_id"]
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        message = f"custom_id: must be a string of 1-{MAX_CUSTOM_ID} characters."
        raise LineError("invalid_value", message, "custom_id")
    if "\x00" in custom_id:
        raise LineError("invalid_value", "custom_id: must not hold U+0000.", "custom_id")
    if request["method"] != "POST":
        raise LineError("invalid_value", 'method: must be "POST".', "method")
    if request["url"] != endpoint:
        message = f"url: must be {endpoint!r}, the endpoint of the batch."
        raise LineError("url_mismatch", message, "url")
