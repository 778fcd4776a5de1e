"""Calls that are JSON objects: {"name": ..., "arguments": {...}}, found while they are written."""

import re

from completions.chat.events import Arguments, CallBegun, Event, Text
from completions.chat.markers import split_at
from completions.chat.tools import dump
from completions.contract import strict_json

_HEADER = re.compile(
    r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_WHITESPACE = " \t\r\n"


class ObjectScanner:
    """Finds the end of a JSON object that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """How many characters of `text` complete the object; None when all are inside."""
        for index, character in enumerate(text):
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return index + 1
        return None


class JsonCallParser:
    """`opening` begins a call, `closing` ends it. `kept` is the end of `opening` that belongs to
    the object, `separators` are characters between calls that are nobody's text."""

    def __init__(self, opening: str, kept: str, closing: str, separators: str = "") -> None:
        self._opening = opening
        self._kept = kept
        self._closing = closing
        self._between = _WHITESPACE + separators
        self._buffer = ""
        self._scanner = ObjectScanner()
        self._step = self._in_text
        self._after_call = False

    @property
    def in_call(self) -> bool:
        return self._step != self._in_text

    def push(self, text: str) -> list[Event]:
        self._buffer += text
        events: list[Event] = []
        while self._step(events):
            pass
        return events

    def finish(self) -> list[Event]:
        left, self._buffer = self._buffer, ""
        if self._step == self._in_header:  # not even a name and the beginning of arguments
            self._step = self._in_text
            return [Text(self._opening.removesuffix(self._kept) + left)]
        return [Text(left)] if left and self._step == self._in_text else []

    # One state each: True when there may be more to do --------------------------------------------

    def _in_text(self, events: list[Event]) -> bool:
        if self._after_call:
            self._buffer = self._buffer.lstrip(self._between)
            self._after_call = not self._buffer
        before, mark, self._buffer = split_at(self._buffer, (self._opening,))
        if before:
            events.append(Text(before))
        if mark is None:
            return False
        self._buffer = self._kept + self._buffer
        self._step = self._in_header
        return True

    def _in_header(self, events: list[Event]) -> bool:
        if header := _HEADER.match(self._buffer):
            events.append(CallBegun(header[1]))
            self._buffer = self._buffer[header.end() :]
            self._scanner = ObjectScanner()
            self._step = self._in_arguments
            return True
        start = len(self._buffer) - len(self._buffer.lstrip())
        if start == len(self._buffer):
            return False
        length = 0
        if self._buffer[start] == "{":
            end = ObjectScanner().feed(self._buffer[start:])
            if end is None:
                return False
            length = start + end
        return self._settle(events, length)

    def _settle(self, events: list[Event], length: int) -> bool:
        """The object is complete and has no usual header, or there is no object: length 0."""
        written, self._buffer = self._buffer[:length], self._buffer[length:]
        call = _read(written)
        if call is None:
            events.append(Text(self._opening.removesuffix(self._kept) + written))
            self._step = self._in_text
            return True
        events += [CallBegun(call[0]), Arguments(call[1])]
        if self._kept:
            self._end_call()
        else:
            self._step = self._in_closing
        return True

    def _in_arguments(self, events: list[Event]) -> bool:
        end = self._scanner.feed(self._buffer)
        piece = self._buffer[:end]
        if piece:
            events.append(Arguments(piece))
        self._buffer = self._buffer[len(piece) :]
        if end is None:
            return False
        self._step = self._in_closing
        return True

    def _in_closing(self, events: list[Event]) -> bool:
        _, mark, self._buffer = split_at(self._buffer, (self._closing,))
        if mark is None:
            return False
        self._end_call()
        return True

    def _end_call(self) -> None:
        self._step = self._in_text
        self._after_call = True


def _read(text: str) -> tuple[str, str] | None:
    """Name and arguments of a call whose keys stand in another order."""
    try:
        value = strict_json.loads(text)
    except strict_json.StrictJSONError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    return (value["name"], dump(arguments)) if isinstance(arguments, dict) else None
