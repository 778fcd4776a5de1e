"""Every place of a request where a pattern of JSON Schema can stand."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from completions.chat.grammar import ToolCalls, make_answer_constraint
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool, ToolCall, ToolChoice
from completions.grammars import Constraint


class Place(NamedTuple):
    constraint: Callable[[str], Constraint]
    """For a pattern."""
    write: Callable[[str], str]
    """What the model would write for a text of the pattern's."""
    excludes: bool = False
    """Whether the pattern must not be found."""
    controls: bool = True
    """Whether control characters without a short escape can be written."""


def quoted(text: str) -> str:
    """A JSON string, in which llguidance has U+007F as an escape only."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _schema(value: Mapping[str, Any]) -> Constraint:
    return Constraint("json_schema", value)


def _string(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def _closed(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object", "properties": {"v": value}, "required": ["v"],
        "additionalProperties": False,
    }  # fmt: skip


def _response_format(pattern: str) -> Constraint:
    schema = {"name": "n", "schema": _closed(_string(pattern))}
    return Constraint("response_format", {"type": "json_schema", "json_schema": schema})


def _tag(content: Mapping[str, Any]) -> Constraint:
    tag = {"type": "tag", "begin": "<t>", "content": content, "end": "</t>"}
    return Constraint("structural_tag", {"type": "structural_tag", "format": tag})


_HERMES = TOOL_FORMATS["hermes"]


def _tool(pattern: str) -> Constraint:
    tool = Tool("f", None, _closed(_string(pattern)), strict=True)
    calls = ToolCalls(_HERMES, [tool], ToolChoice(mode="required"))
    found = make_answer_constraint(None, calls, None)
    assert found is not None
    return found


def _names(pattern: str) -> Constraint:
    return _schema({
        "type": "object", "patternProperties": {pattern: {"const": 1}},
        "additionalProperties": {"const": 2},
    })  # fmt: skip


def _only_names(pattern: str) -> Constraint:
    return _schema({
        "type": "object", "patternProperties": {pattern: {"const": 1}},
        "additionalProperties": False,
    })  # fmt: skip


PLACES: Mapping[str, Place] = {
    "json_schema": Place(lambda p: _schema(_string(p)), quoted),
    "no type": Place(lambda p: _schema({"pattern": p}), quoted),
    "text of a schema": Place(
        lambda p: Constraint("json_schema", json.dumps(_string(p))), quoted
    ),
    "response_format": Place(_response_format, lambda text: f'{{"v":{quoted(text)}}}'),
    "allOf": Place(
        lambda p: _schema({"type": "string", "allOf": [{"pattern": p}, {"pattern": "^[^]*$"}]}),
        quoted,
    ),
    "lengths": Place(lambda p: _schema({**_string(p), "maxLength": 9}), quoted),
    "not": Place(
        lambda p: _schema({"type": "string", "not": {"pattern": p}}), quoted, excludes=True
    ),
    "propertyNames": Place(
        lambda p: _schema({"type": "object", "propertyNames": {"pattern": p},
                           "additionalProperties": {"const": 1}}),
        lambda text: f"{{{quoted(text)}:1}}",
    ),
    "patternProperties": Place(_names, lambda text: f"{{{quoted(text)}:1}}", controls=False),
    "additionalProperties": Place(
        _names, lambda text: f"{{{quoted(text)}:2}}", excludes=True, controls=False
    ),
    "only patternProperties": Place(_only_names, lambda text: f"{{{quoted(text)}:1}}"),
    "structural tag": Place(
        lambda p: _tag({"type": "json_schema", "json_schema": _string(p)}),
        lambda text: f"<t>{quoted(text)}</t>",
    ),
    "bare parameters": Place(
        lambda p: _tag({"type": "qwen_xml_parameter", "json_schema": _closed(_string(p))}),
        lambda text: f"<t><parameter=v>{text}</parameter></t>",
    ),
    "tool arguments": Place(
        _tool, lambda text: _HERMES.write(ToolCall("f", {"v": text})).replace("\x7f", "\\u007f")
    ),
}  # fmt: skip
