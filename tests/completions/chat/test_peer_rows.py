"""What tests of vLLM, SGLang and llama.cpp give their parsers, with values of our own.

A row has what those parsers make of a text. Where Quire reads something else, the row has that too,
and why.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from completions.chat.chat_style import THINK_TAGS
from completions.chat.reasoning import ReasoningParser
from completions.chat.tools import Tool
from tests.completions.chat import reading

ROWS, THOUGHTS = (
    json.loads(Path(__file__).with_name(name).read_text())
    for name in ("peer_rows.json", "peer_thoughts.json")
)


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
    message = reading.read(form, pieces, TOOLS)
    return {
        "content": message.content.strip(),
        "calls": [[name, load(arguments)] for name, arguments in message.calls],
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
    assert [row for row in (*ROWS, *THOUGHTS) if ("ours" in row) != bool(row.get("why"))] == []


def split(row: dict[str, Any], size: int) -> dict[str, str]:
    """Return the reasoning and the content of a text that comes in pieces of this size."""
    (tags,) = (each for each in THINK_TAGS if each.begin == row["begin"])
    parser = ReasoningParser(tags, is_open=row["is_open"])
    pieces = [row["text"][at : at + size] for at in range(0, len(row["text"]), size)]
    reasoning, content = zip(*map(parser.push, pieces), parser.finish(), strict=True)
    return {"reasoning": "".join(reasoning), "content": "".join(content)}


@pytest.mark.parametrize("row", THOUGHTS, ids=lambda row: f"{row['begin']}-{row['text'][:40]!r}")
def test_reasoning_is_split_as_the_row_says(row: dict[str, Any]) -> None:
    theirs = {"reasoning": row["reasoning"], "content": row["content"]}
    for size in (1, 2, 7, 1000):
        assert split(row, size) == row.get("ours", theirs)
