"""Calls that are JSON objects: {"name": ..., "arguments": {...}}."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from completions.chat.call_parser import Arguments, CallParser, CallStart, Part
from completions.chat.markers import split_at
from completions.chat.tools import Tool, ToolCall, ToolFormat, dump
from completions.contract import strict_json
from completions.contract.stop_spans import StopSpan
from completions.grammars.structural_tag import json_nodes
from completions.grammars.structural_tag.json_nodes import JSONNode

_HEADER = re.compile(
    r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_WHITESPACE = " \t\r\n"


class ObjectScanner:
    """Finder of the end of a JSON object that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Return the number of characters of `text` that complete the object; None if it is
        incomplete."""
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


class JSONCallParser(CallParser):
    """Finder of calls between `opening` and `closing`. `kept_prefix` is the suffix of `opening`
    that belongs to the object; `separators` are characters that are dropped between calls."""

    def __init__(self, opening: str, kept_prefix: str, closing: str, separators: str = "") -> None:
        super().__init__(opening, kept_prefix, _WHITESPACE + separators)
        self._closing = closing
        self._scanner = ObjectScanner()

    def _parse_header(self, parts: list[Part]) -> bool:
        if header := _HEADER.match(self._buffer):
            parts.append(CallStart(header[1]))
            self._buffer = self._buffer[header.end() :]
            self._scanner = ObjectScanner()
            self._step = self._parse_arguments
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
        return self._settle(parts, length)

    def _settle(self, parts: list[Part], length: int) -> bool:
        """Read a complete object without the usual header; `length` 0 means no object."""
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        call = _read(text)
        if call is None:
            parts.append(self._make_text(text))
            self._step = self._parse_text
            return True
        parts += [CallStart(call[0]), Arguments(call[1])]
        if self._kept:
            self._end_call()
        else:
            self._step = self._parse_closing
        return True

    def _parse_arguments(self, parts: list[Part]) -> bool:
        end = self._scanner.feed(self._buffer)
        piece = self._buffer[:end]
        if piece:
            parts.append(Arguments(piece))
        self._buffer = self._buffer[len(piece) :]
        if end is None:
            return False
        self._step = self._parse_closing
        return True

    def _parse_closing(self, parts: list[Part]) -> bool:
        _, marker, self._buffer = split_at(self._buffer, (self._closing,))
        if marker is None:
            return False
        self._end_call()
        return True


def _read(text: str) -> tuple[str, str] | None:
    """Return the name and arguments of a call whose keys are in another order."""
    try:
        value = strict_json.loads(text)
    except strict_json.StrictJSONError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    return (value["name"], dump(arguments)) if isinstance(arguments, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JSONFormat(ToolFormat):
    """An object with a call's name and arguments, between an opening and a closing delimiter."""

    begin: str
    """The text before the arguments; {name} is the tool's name."""
    end: str
    """The text after the arguments."""
    kept: str = ""
    """The suffix of `opening` that belongs to the object."""
    separators: str = ""

    @property
    def make_span(self) -> StopSpan:
        return StopSpan(self.opening, self.closing, True, _WHITESPACE + self.separators)

    def make_call_node(self, tool: Tool) -> JSONNode:
        return json_nodes.make_tag(
            self._write_header(tool.name), tool.make_arguments_node(), self.end
        )

    def write(self, call: ToolCall) -> str:
        return f"{self._write_header(call.name)}{call.text}{self.end}"

    def make_parser(self, tools: Sequence[Tool]) -> CallParser:
        return JSONCallParser(self.opening, self.kept, self.closing, self.separators)

    def _write_header(self, name: str) -> str:
        return self.begin.replace("{name}", name)
