"""Tool calls in the format of GLM-4.5 and later: a name, then keys and values between delimiters.

    <tool_call>NAME
    <arg_key>KEY</arg_key>
    <arg_value>VALUE</arg_value>
    </tool_call>

Newlines are optional. Strings are written without quotes, other values as JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from completions.chat.call_parser import Arguments, CallParser, CallStart, Part
from completions.chat.glm_call_values import ArgumentReader
from completions.chat.markers import split_at
from completions.chat.tools import Tool, ToolCall, ToolFormat, dump
from completions.grammars.structural_tag import json_nodes
from completions.grammars.structural_tag.json_nodes import JSONNode

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


class GlmFormat(ToolFormat):
    def make_call_node(self, tool: Tool) -> JSONNode:
        return json_nodes.make_tag(
            f"{_OPENING}{tool.name}", tool.make_arguments_node("glm_xml"), _CLOSING
        )

    def write(self, call: ToolCall) -> str:
        lines = [f"{_OPENING}{call.name}"]
        if isinstance(call.arguments, str):
            return "\n".join([*lines, call.arguments, _CLOSING])
        for key, value in call.arguments.items():
            text = value if isinstance(value, str) else dump(value)
            lines += [f"{_KEY}{key}{_KEY_END}", f"{_VALUE}{text}{_VALUE_END}"]
        return "\n".join([*lines, _CLOSING])

    def make_parser(self, tools: Sequence[Tool]) -> CallParser:
        return GlmParser({tool.name: tool.parameters or {} for tool in tools})


FORMAT = GlmFormat(
    name="glm",
    opening=_OPENING,
    closing=_CLOSING,
    delimiters=(_OPENING, _CLOSING, _KEY, _KEY_END, _VALUE, _VALUE_END),
    between="\n",
    instructions="""\
You may call one or more of these functions, whose signatures are inside <tools></tools>:
<tools>
{tools}
</tools>

To call a function, answer in this form:
<tool_call>{function name}
<arg_key>{argument name}</arg_key>
<arg_value>{argument value}</arg_value>
...
</tool_call>""",
)


class GlmParser(CallParser):
    """Emitter of the arguments as JSON while they arrive: declared strings piece by piece, other
    values once they are complete."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(_OPENING)
        self._schemas = schemas
        self._arguments = ArgumentReader({})
        self._key = ""
        self._streams = False
        self._separator = "{"

    def _parse_header(self, parts: list[Part]) -> bool:
        end = min((i for i in map(self._buffer.find, (_KEY, _CLOSING)) if i >= 0), default=None)
        if end is None:
            return False
        name, self._buffer = self._buffer[:end].strip(), self._buffer[end:]
        parts.append(CallStart(name))
        self._arguments = ArgumentReader(self._schemas.get(name, {}))
        self._separator = "{"
        self._step = self._parse_between_arguments
        return True

    def _parse_between_arguments(self, parts: list[Part]) -> bool:
        _, marker, self._buffer = split_at(self._buffer, (_KEY, _CLOSING))
        if marker == _CLOSING:
            parts.append(Arguments("{}" if self._separator == "{" else "}"))
            self._end_call()
        elif marker == _KEY:
            self._step = self._parse_key
        return marker is not None

    def _parse_key(self, parts: list[Part]) -> bool:
        end = self._buffer.find(_VALUE)
        if end < 0:
            return False
        self._key = self._buffer[:end].partition(_KEY_END)[0].strip()
        self._buffer = self._buffer[end + len(_VALUE) :]
        self._streams = self._arguments.is_string(self._key)
        opened = '"' if self._streams else ""
        parts.append(Arguments(f"{self._separator}{dump(self._key)}:{opened}"))
        self._separator = ","
        self._step = self._parse_value
        return True

    def _parse_value(self, parts: list[Part]) -> bool:
        before, marker, rest = split_at(self._buffer, (_VALUE_END,))
        if self._streams:
            piece = dump(before)[1:-1] + ('"' if marker else "")
            if piece:
                parts.append(Arguments(piece))
        elif marker:
            parts.append(Arguments(self._arguments.to_json(self._key, before)))
        if self._streams or marker:
            self._buffer = rest
        if marker:
            self._step = self._parse_between_arguments
        return marker is not None
