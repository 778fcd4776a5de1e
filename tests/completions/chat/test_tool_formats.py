"""The formats of tool calls: what models write in them is read, and their names are known."""

import json
from typing import Any

import pytest
from django.conf import settings

from completions.catalog.entries import TOOL_FORMAT_NAMES
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import ToolCall
from tests.completions.chat import reading
from tests.completions.chat.format_rows import ROWS, TOOLS
from tests.conformance.chat_templates.table import FORMATS, THINKING


def read(form: str, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """The text around calls, and the calls."""
    message = reading.read(form, pieces, TOOLS)
    return message.content.strip(), message.calls


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("pythonic", '{"code":"[now()]"}'),
        ("glm", '{"code":"Use <tool_call>now</tool_call> here"}'),
        ("qwen3_coder", '{"code":"<tool_call>\\n<function=now>\\n</function>\\n</tool_call>"}'),
        ("mistral", '{"code":"[TOOL_CALLS]now[ARGS]{}"}'),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_no_call_follows_a_constrained_answer(form: str, text: str, size: int) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    message = reading.read(form, pieces, TOOLS, only_first=True)
    assert (message.content, message.calls) == (text, [])


@pytest.mark.parametrize("form", ["glm", "mistral", "hermes", "llama3", "minimax_m2"])
def test_a_tool_that_was_not_offered_is_not_called(form: str) -> None:
    text = TOOL_FORMATS[form].write(ToolCall("delete", {}))
    assert read(form, [text]) == (text.strip(), [])


@pytest.mark.parametrize("form", ["pythonic", "olmo3", "lfm2", "llama4_pythonic", "gemma4"])
@pytest.mark.parametrize("name", ["user name", "a=b", "a,b", "a)", "dc:title", "a}", "plain"])
def test_any_name_of_an_argument_is_read_back(form: str, name: str) -> None:
    text = TOOL_FORMATS[form].write(ToolCall("weather", {name: "v"}))
    around, found = read(form, [text])
    assert (around, [(tool, json.loads(said)) for tool, said in found]) == (
        "",
        [("weather", {name: "v"})],
    )


@pytest.mark.parametrize(("form", "text", "found", "content"), ROWS)
def test_what_models_write_is_read(
    form: str, text: str, found: list[tuple[str, Any]], content: str
) -> None:
    whole = read(form, [text])
    assert whole[0] == content
    assert [(name, json.loads(arguments)) for name, arguments in whole[1]] == found
    for pieces in (list(text), [text[i : i + 3] for i in range(0, len(text), 3)]):
        assert read(form, pieces) == whole


def test_every_format_has_rows():
    assert {form for form, *_ in ROWS} == set(TOOL_FORMATS)


def test_models_toml_names_the_formats_that_there_are():
    assert set(TOOL_FORMAT_NAMES) == set(TOOL_FORMATS)


def list_think_tags(form: str) -> list[str]:
    """Return the tags that begin reasoning in the templates at hand with this format of calls, or
    that its record has."""
    record = TOOL_FORMATS[form].think
    tags = {record[0]} if record else set[str]()
    tags |= {
        tag
        for package, formats in FORMATS.items()
        for tag, names in THINKING[package].items()
        if not set(formats.get(form, "").split()).isdisjoint(names.split())
    }
    return sorted(f"`{tag}`".replace("|", "\\|") for tag in tags)


def test_the_documentation_lists_the_formats():
    rows = [
        f"| {form.families} | `{name}` | {', '.join(list_think_tags(name)) or 'none'} |"
        for name, form in sorted(TOOL_FORMATS.items())
    ]
    table = "\n".join(["| family | `tool_format` | thinking |", "|---|---|---|", *rows])
    assert table in (settings.BASE_DIR / "docs" / "models.md").read_text(), table
