"""Calls as GLM-4.5 and later write them: a name, then keys and values between marks.

    <tool_call>NAME
    <arg_key>KEY</arg_key>
    <arg_value>VALUE</arg_value>
    </tool_call>

Newlines are optional. Strings stand there as they are, other values as JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from completions.chat.arguments import arguments
from completions.chat.events import Arguments, CallBegun, CallParser, Event, Text
from completions.chat.glm_values import ArgumentReader
from completions.chat.markers import split_at
from completions.chat.tools import Call, Tool, dump
from completions.grammars.structural_tag import json_nodes
from completions.grammars.structural_tag.json_nodes import JSONNode

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_PREAMBLE = """\
You may call one or more of these functions, whose signatures are inside <tools></tools>:
<tools>
{tools}
</tools>

To call a function, answer in this form:
<tool_call>{function name}
<arg_key>{argument name}</arg_key>
<arg_value>{argument value}</arg_value>
...
</tool_call>"""


class Glm:
    name = "glm"
    opening = _OPENING
    marks: tuple[str, ...] = (_OPENING, _CLOSING, _KEY, _KEY_END, _VALUE, _VALUE_END)
    between = "\n"

    def call(self, tool: Tool) -> JSONNode:
        return json_nodes.tag(f"{_OPENING}{tool.name}", arguments(tool, "glm_xml"), _CLOSING)

    def write(self, call: Call) -> str:
        lines = [f"{_OPENING}{call.name}"]
        for key, value in call.arguments.items():
            written = value if isinstance(value, str) else dump(value)
            lines += [f"{_KEY}{key}{_KEY_END}", f"{_VALUE}{written}{_VALUE_END}"]
        return "\n".join([*lines, _CLOSING])

    def preamble(self, tools: Sequence[Tool]) -> str:
        return _PREAMBLE.replace("{tools}", "\n".join(dump(tool.as_dict()) for tool in tools))

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        return GlmParser({tool.name: tool.parameters or {} for tool in tools})


class GlmParser:
    """Writes the arguments as JSON while they come: declared strings piece by piece, other values
    once they are whole."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._schemas = schemas
        self._buffer = ""
        self._step = self._in_text
        self._arguments = ArgumentReader({})
        self._key = ""
        self._separator = "{"
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
        if self._step == self._in_name:
            self._step = self._in_text
            return [Text(_OPENING + left)]
        return [Text(left)] if left and self._step == self._in_text else []

    # One state each: True when there may be more to do --------------------------------------------

    def _in_text(self, events: list[Event]) -> bool:
        if self._after_call:
            self._buffer = self._buffer.lstrip()
            self._after_call = not self._buffer
        before, mark, self._buffer = split_at(self._buffer, (_OPENING,))
        if before:
            events.append(Text(before))
        if mark is not None:
            self._step = self._in_name
        return mark is not None

    def _in_name(self, events: list[Event]) -> bool:
        end = min((i for i in map(self._buffer.find, (_KEY, _CLOSING)) if i >= 0), default=None)
        if end is None:
            return False
        name, self._buffer = self._buffer[:end].strip(), self._buffer[end:]
        events.append(CallBegun(name))
        self._arguments = ArgumentReader(self._schemas.get(name, {}))
        self._separator = "{"
        self._step = self._between_arguments
        return True

    def _between_arguments(self, events: list[Event]) -> bool:
        _, mark, self._buffer = split_at(self._buffer, (_KEY, _CLOSING))
        if mark == _CLOSING:
            events.append(Arguments("{}" if self._separator == "{" else "}"))
            self._step = self._in_text
            self._after_call = True
        elif mark == _KEY:
            self._step = self._in_key
        return mark is not None

    def _in_key(self, events: list[Event]) -> bool:
        end = self._buffer.find(_VALUE)
        if end < 0:
            return False
        self._key = self._buffer[:end].partition(_KEY_END)[0].strip()
        self._buffer = self._buffer[end + len(_VALUE) :]
        opened = '"' if self._arguments.is_string(self._key) else ""
        events.append(Arguments(f"{self._separator}{dump(self._key)}:{opened}"))
        self._separator = ","
        self._step = self._in_value
        return True

    def _in_value(self, events: list[Event]) -> bool:
        before, mark, rest = split_at(self._buffer, (_VALUE_END,))
        streams = self._arguments.is_string(self._key)
        if streams:
            piece = dump(before)[1:-1] + ('"' if mark else "")
            if piece:
                events.append(Arguments(piece))
        elif mark:
            events.append(Arguments(self._arguments.as_json(self._key, before)))
        if streams or mark:
            self._buffer = rest
        if mark:
            self._step = self._between_arguments
        return mark is not None
