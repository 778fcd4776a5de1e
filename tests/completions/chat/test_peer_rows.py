"""What tests of vLLM, SGLang and llama.cpp give their parsers, with values of our own.

A row has what those parsers make of a text. Where Quire reads something else, the row has that too,
and why.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from completions.chat.call_parser import CallParser, CallStart, Text
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool

ROWS = json.loads(Path(__file__).with_name("peer_rows.json").read_text())


def make_tool(name: str, **properties: Any) -> Tool:
    schemas = {
        key: {"type": value} if isinstance(value, str) else value
        for key, value in properties.items()
    }
    return Tool(name, None, {"type": "object", "properties": schemas})


TOOLS = (
    make_tool("weather", city="string", state="string", unit={"enum": ["C", "F"]}, days="integer"),
    make_tool("area", shape="string", size="object", digits="integer"),
    make_tool(
        "types",
        i="integer",
        f="number",
        b="boolean",
        s="string",
        o="object",
        a="array",
        n="null",
        maybe={"anyOf": [{"type": "string"}, {"type": "null"}]},
        number={"anyOf": [{"type": "integer"}, {"type": "null"}]},
        list={"oneOf": [{"type": "array"}, {"type": "null"}]},
        mode={"enum": ["none", "all"]},
    ),
    make_tool("write", path="string", text="string"),
    make_tool("now"),
    make_tool("my.time", zone="string"),
    make_tool("get-time", zone="string"),
    make_tool("buy", items="array", to="string"),
)


def read(form: str, pieces: list[str]) -> dict[str, Any]:
    """Return the content and the calls, as rows have them."""
    parser = CallParser(TOOL_FORMATS[form], TOOLS)
    content, calls = "", list[list[str]]()
    for part in [part for piece in pieces for part in parser.push(piece)] + parser.finish():
        if isinstance(part, Text):
            content += part.text
        elif isinstance(part, CallStart):
            calls.append([part.name, ""])
        else:
            calls[-1][1] += part.text
    return {
        "content": content.strip(),
        "calls": [[name, load(arguments)] for name, arguments in calls],
    }


def load(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except json.JSONDecodeError:
        return arguments


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['format']}-{row['text'][:40]!r}")
def test_a_text_is_read_as_the_row_says(row: dict[str, Any]) -> None:
    theirs = {"content": row["content"], "calls": row["calls"]}
    whole = read(row["format"], [row["text"]])
    assert whole == row.get("ours", theirs)
    for size in (1, 2, 7):
        starts = range(0, len(row["text"]), size)
        assert read(row["format"], [row["text"][at : at + size] for at in starts]) == whole


def test_a_row_that_differs_says_why() -> None:
    assert [row for row in ROWS if ("ours" in row) != bool(row.get("why"))] == []
