"""JSON that every reader understands in the same way: read strictly, written on one line.

JSON allows U+0085, U+2028 and U+2029 in a string, and orjson writes them raw. Many readers of lines
end a line at each of them: `str.splitlines`, and with it `iter_lines` of httpx and of requests. So
they are written as escapes, which every JSON parser reads as the same characters.
"""

import json
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NoReturn

import orjson

MAX_DEPTH = 200
"""Arrays and objects inside one another. Python's own limit depends on where a text is read, and
what reads it next may have a lower one; orjson writes 254 levels."""

# Only these escapes can produce half of a surrogate pair, which no UTF-8 text can hold.
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - _STEPS.keys())
_BRACKETS_BATCH_SIZE = 64 * 1024
"""Brackets that are counted before other threads may run."""
_ESCAPES = {"\x85": b"\\u0085", "\u2028": b"\\u2028", "\u2029": b"\\u2029"}
_REPLACEMENTS = [(character.encode(), escape) for character, escape in _ESCAPES.items()]


class StrictJSONError(ValueError):
    """A text is not strict JSON. Lines and columns count from 1; None if unknown."""

    def __init__(self, reason: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(reason if line is None else f"{reason} at line {line}, column {column}")
        self.reason = reason
        self.line = line
        self.column = column


def _make_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise StrictJSONError(f"the key {name[:64]!r} appears twice in one object")
            seen.add(name)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise StrictJSONError(f"{name} is not JSON")


_TOO_DEEP = f"it is nested too deeply; flatten it to {MAX_DEPTH} levels"


def _parse_int(digits: str) -> int:
    return int(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_make_object, parse_constant=_refuse_constant)
_PATIENT_DECODER = json.JSONDecoder(
    object_pairs_hook=_make_object, parse_constant=_refuse_constant, parse_int=_parse_int
)
"""Lets other threads run between two integers. The other decoder holds the interpreter for 70 ms if
it reads half a million token ids."""
_LONG = 256 * 1024
"""Characters from which a text is read by the patient decoder."""


def loads(text: str) -> Any:
    """Parse an RFC 8259 text with unique keys, no lone surrogates and at most MAX_DEPTH levels, so
    that no two parsers read it differently. Raises StrictJSONError.

    Numbers too large for a float become infinite; the caller must refuse them.
    """
    try:
        value = (_DECODER if len(text) < _LONG else _PATIENT_DECODER).decode(text)
        if _measure_depth(text) > MAX_DEPTH:
            raise StrictJSONError(_TOO_DEEP)
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise StrictJSONError(r"a \u escape is half of a surrogate pair") from error
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")  # as in "Unterminated string starting at"
        raise StrictJSONError(reason, error.lineno, error.colno) from error
    except RecursionError as error:
        raise StrictJSONError(_TOO_DEEP) from error
    except StrictJSONError:
        raise
    except ValueError as error:  # int() refuses more than 4300 digits
        raise StrictJSONError("an integer has too many digits") from error
    return value


def _measure_depth(text: str) -> int:
    """Return how deeply a JSON text is nested, exactly if that is more than MAX_DEPTH."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    brackets = _STRING.sub("", text).encode().translate(None, _NO_BRACKETS)
    level = deepest = 0
    for start in range(0, len(brackets), _BRACKETS_BATCH_SIZE):
        steps = map(_STEPS.__getitem__, brackets[start : start + _BRACKETS_BATCH_SIZE])
        levels = list(accumulate(steps, initial=level))
        level, deepest = levels[-1], max(deepest, *levels)
    return deepest


def encode_line(value: object, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return `value` as JSON that no reader cuts, without a newline. Raises
    orjson.JSONEncodeError."""
    return escape_line_breaks(orjson.dumps(value, default=default))


def escape_line_breaks(text: bytes) -> bytes:
    """Escape the three characters in a JSON text, where they can only stand within strings."""
    if not text.isascii():  # nearly every event is ASCII, and this check takes nanoseconds
        for raw, escape in _REPLACEMENTS:
            text = text.replace(raw, escape)
    return text
