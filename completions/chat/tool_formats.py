"""The formats in which models write tool calls, from the records in tool_formats.toml."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from completions.chat.tool_format import ID, ToolFormat
from completions.grammars.structural_tag.literals import PYTHON, Literals
from completions.grammars.structural_tag.parameters import STYLES, Style

_NAMED = {**STYLES, PYTHON.name: PYTHON}


def _freeze(fields: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of a record, with TOML's arrays as tuples."""
    return {key: tuple(each) if isinstance(each, list) else each for key, each in fields.items()}


def _find_separator(begin: str, call: str) -> str:
    """Return the text between two calls: a comma in a list, and a line break between lines."""
    _, bracket, space = begin.rpartition("[")
    if bracket and not space.strip():
        return f",{space or ' '}"
    return "\n" if "\n" in call or begin.endswith("\n") else ""


def _make_format(name: str, records: Mapping[str, Mapping[str, Any]]) -> ToolFormat:
    own = records[name]
    fields = _freeze({**records.get(own.get("like", ""), {}), **own})
    fields.pop("like", None)
    if "arguments" in fields:
        fields["arguments"] = _NAMED[fields["arguments"]]
    for key, make in (("parameters", Style.parse), ("literals", Literals)):
        if key in fields:
            fields["arguments"] = make(name, **_freeze(fields.pop(key)))
    begin = fields.get("section", ("", ""))[0]
    separator = _find_separator(begin, fields.get("call", ""))
    call_id = ID if "ids" in fields else ""
    return ToolFormat(name=name, **{"separator": separator, "call_id": call_id, **fields})


def _read_formats() -> dict[str, ToolFormat]:
    records = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return {name: _make_format(name, records) for name in records}


TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = _read_formats()
