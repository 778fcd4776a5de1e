"""Parsing back: whatever the cuts, the deltas joined are the message; nothing is lost or leaked."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.chat.reasoning import ReasoningParser, ThinkTags
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool, ToolCall
from tests.completions.chat import reading

MARKS = ThinkTags("<think>", "</think>")
TOOLS = (
    Tool("get_weather", "w", {"type": "object", "properties": {"city": {"type": "string"}}}),
    Tool("add", None, None),
)
HIDDEN = ("<|im_start|>", "<|file|>")


def message(
    pieces: Sequence[str], form: str | None, thinking: bool | None = None
) -> dict[str, Any]:
    """What an OpenAI client makes of the deltas; `thinking`: is the prompt inside thoughts."""
    reasoning = None if thinking is None else ReasoningParser(MARKS, is_open=thinking)
    return reading.read(form, pieces, TOOLS, reasoning, hidden=HIDDEN)._asdict()


def cut(text: str, places: Sequence[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[low:high] for low, high in pairwise(edges)]


WEATHER = ToolCall("get_weather", {"city": 'Pa"ris {x}\n</tool'})
ADD = ToolCall("add", {"a": 1, "b": [2, {"c": '}]"'}], "d": "é🍎"})


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_what_a_format_writes_it_reads_back(form: str) -> None:
    written = TOOL_FORMATS[form].write(WEATHER, ADD, ToolCall("add", {}))
    text = f"I shall look.\n{written}\n"
    found = message([text], form)
    assert found["content"] == "I shall look."
    assert [(name, json.loads(text)) for name, text in found["calls"]] == [
        (call.name, call.arguments) for call in (WEATHER, ADD, ToolCall("add", {}))
    ]
    assert found["has_called"]


SCRAPS = st.sampled_from(
    [
        *(mark for each in TOOL_FORMATS.values() for mark in (each.opening, *each.delimiters)),
        *(f.write(call) for f in TOOL_FORMATS.values() for call in (WEATHER, ADD)),
        '{"name": "add", "arguments": {"a": ',
        '{"arguments": {}, "name": "add"}',
        "{",
        "}",
        '"',
        "\\",
        ";",
        "\n",
        "  ",
        "<",
        "</",
        "add",
        "text",
        "é",
        "<think>",
        "</think>",
        *HIDDEN,
    ]
)


@given(
    scraps=st.lists(SCRAPS, max_size=12),
    places=st.lists(st.integers(0, 400), max_size=12),
    form=st.sampled_from([None, *TOOL_FORMATS]),
    thinking=st.sampled_from([None, False, True]),
)
def test_cuts_change_nothing(
    scraps: list[str], places: list[int], form: str | None, thinking: bool | None
) -> None:
    text = "".join(scraps)
    whole = message([text], form, thinking)
    assert message(cut(text, places), form, thinking) == whole
    assert message(list(text), form, thinking) == whole


@given(text=st.text(alphabet="ab <>\n{}", max_size=40), places=st.lists(st.integers(0, 40)))
def test_text_without_calls_is_content_to_the_letter(text: str, places: list[int]) -> None:
    for form in (None, *TOOL_FORMATS):
        assert message(cut(text, places), form)["content"] == text


@pytest.mark.parametrize(
    ("form", "text", "content"),
    [
        ("hermes", "a <tool_call> b", "a <tool_call> b"),
        ("hermes", '<tool_call>{"name": 3}</tool_call> b', '<tool_call>{"name": 3}</tool_call> b'),
        ("hermes", '<tool_call>{"name": "add", "arg', '<tool_call>{"name": "add", "arg'),
        ("llama3", '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}'),
        ("glm", "<tool_call>add", "<tool_call>add"),
    ],
)
def test_what_is_no_call_is_content(form: str, text: str, content: str) -> None:
    found = message([text], form)
    assert (found["content"], found["calls"], found["has_called"]) == (content, [], False)


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": [1', '{"a": [1'),
        ("llama3", '{"name": "add", "parameters": {"a": "x', '{"a": "x'),
        ("glm", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Pa", '{"city":"Pa'),
    ],
)
def test_a_call_cut_short_keeps_what_there_is(form: str, text: str, arguments: str) -> None:
    found = message([text], form)
    assert found["calls"][0][1] == arguments
    assert not found["has_called"]


def test_what_follows_a_call_but_is_none_is_content() -> None:
    called = "<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    broken = "<|tool_call_begin|>functions.add:1<|tool_call_x|>{}"
    found = message([f"<|tool_calls_section_begin|>{called}{broken}"], "kimi_k2")
    assert (found["content"], found["calls"]) == (broken, [("add", "{}")])


def test_calls_whose_keys_stand_in_another_order() -> None:
    text = '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>'
    assert message([text], "hermes")["calls"] == [("add", '{"a":1}')]


def test_undeclared_glm_values_are_json_where_they_parse_as_json() -> None:
    text = (
        "<tool_call>add<arg_key>a</arg_key><arg_value> 12 </arg_value>"
        '<arg_key>b</arg_key><arg_value>two "2"</arg_value></tool_call>'
    )
    assert message([text], "glm")["calls"] == [("add", '{"a":12,"b":"two \\"2\\""}')]


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "[" * 100_000, r'"\ud800"', "1" * 5_000])
def test_what_is_no_json_to_everybody_is_a_string(value: str) -> None:
    text = f"<tool_call>add<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>"
    ((_, arguments),) = message([text], "glm")["calls"]
    assert json.loads(arguments) == {"a": value}


@pytest.mark.parametrize("value", ["[" * 100_000 + "]" * 100_000, r'"\ud800"', "NaN"])
def test_an_object_that_cannot_be_read_is_no_call(value: str) -> None:
    text = f'<tool_call>{{"arguments": {{"a": {value}}}, "name": "add"}}</tool_call>'
    found = message([text], "hermes")
    assert (found["content"], found["calls"]) == (text, [])


@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "content"),
    [
        ("<think>\nso\n</think>\n\nyes", False, "so", "yes"),
        ("so </think>yes", True, "so", "yes"),
        ("\n<think>a b", False, "a b", ""),
        ("yes <think>", False, "", "yes <think>"),
        ("  <thi", False, "", "  <thi"),
        ("a</think>\n\n\n\nb", True, "a", "\n\nb"),
        ("</think>b", True, "", "b"),
        ("a </thin", True, "a </thin", ""),
    ],
)
def test_thoughts_are_separated_from_content(
    text: str, is_open: bool, reasoning: str, content: str
) -> None:
    found = message([text], None, is_open)
    assert (found["reasoning"], found["content"]) == (reasoning, content)


def test_thoughts_then_a_call() -> None:
    text = f"<think>hm</think>\n\n{TOOL_FORMATS['hermes'].write(ADD)}"
    found = message([text], "hermes", False)
    assert (found["reasoning"], found["content"]) == ("hm", "")
    assert json.loads(found["calls"][0][1]) == ADD.arguments
