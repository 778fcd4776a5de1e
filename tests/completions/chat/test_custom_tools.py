"""Custom tools: in each format, the grammar binds the input, and the parser reads it back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from completions.chat.custom_input import InputReader
from completions.chat.grammar import ToolCalls, make_answer_constraint
from completions.chat.tool_format import ToolFormat
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import InputGrammar, Tool, ToolCall, ToolChoice, dump
from completions.grammars import tokens, translate
from completions.grammars.compiler import Compiler
from completions.grammars.structural_tag.parameters import Style
from tests.completions.chat import reading
from tests.completions.chat.reading import REPRESENTATIVES
from tests.representatives import stand_for_all

LARK = InputGrammar(
    "lark",
    'start: "SELECT " NAME (", " NAME)* "\\n" "\\"" "<" /[^;]*/ ";"\nNAME: /[a-z]+/',
)
REGEX = InputGrammar("regex", r'[0-9]{3}"\\\n\d/<[^x]*')
ROWS = [
    (LARK, 'SELECT a, bc\n"</x> \\ é;', "SELECT a;"),
    (REGEX, '123"\\\n4/<é\t"}', '123"\\\n4/<x'),
    (None, 'any\n"text" \\ </x> é', ""),
]


def write(tool_format: ToolFormat, tool: Tool, value: str) -> str:
    """Return a call as the grammar wants it: with an input in quotes if it has a grammar."""
    if tool.grammar is None:
        return tool_format.write(ToolCall(tool.name, {"input": value}))
    node = tool.make_arguments_node(tool_format.arguments)
    begin, text, end = node["elements"]
    inner = dump(value)[1:-1] if text["is_quoted"] else value
    arguments = f"{begin['value']}{inner}{end['value']}"
    written: str = tool_format.write(ToolCall(tool.name, arguments))
    if not isinstance(tool_format.arguments, Style):
        return written
    return written.replace(f"\n{arguments}", arguments).replace(f"{arguments}\n", arguments)


def read(tool_format: ToolFormat, tool: Tool, text: str, size: int) -> list[tuple[str, str]]:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return reading.read(tool_format.name, pieces, [tool]).calls


def accepts(tool_format: ToolFormat, tool: Tool, text: str) -> bool:
    calls = ToolCalls(tool_format, [tool], ToolChoice("required"))
    constraint = make_answer_constraint(None, calls, None)
    assert constraint is not None
    matcher = LLMatcher(tokens.load(None), translate(constraint, Compiler()).grammar, log_level=0)
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


@pytest.mark.represented_by("lark-hermes", "regex-qwen3_coder", "lark-openai")
@pytest.mark.parametrize("form", stand_for_all(REPRESENTATIVES, TOOL_FORMATS))
@pytest.mark.parametrize(("grammar", "good", "bad"), ROWS, ids=["lark", "regex", "text"])
def test_the_input_matches_and_is_read_back(
    form: str, grammar: InputGrammar | None, good: str, bad: str
) -> None:
    tool_format = TOOL_FORMATS[form]
    tool = Tool.make_custom("run", None, grammar)
    text = write(tool_format, tool, good)
    assert accepts(tool_format, tool, text)
    for size in (1, 3, len(text)):
        assert read(tool_format, tool, text, size) == [("run", good)]
    if grammar is not None:
        assert not accepts(tool_format, tool, write(tool_format, tool, bad))


@given(st.text(), st.lists(st.integers(1, 5)), st.booleans())
def test_any_cut_of_the_arguments_gives_the_input(
    value: str, cuts: list[int], is_ascii: bool
) -> None:
    text = json.dumps({"input": value}, ensure_ascii=is_ascii)
    reader, pieces, at = InputReader(), [], 0
    for length in cuts:
        pieces.append(reader.read(text[at : at + length]))
        at += length
    pieces += [reader.read(text[at:]), reader.finish()]
    assert "".join(pieces) == value
    for piece in pieces:
        piece.encode()  # no half of a pair


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"input": "a\\u00', "a"),
        ('{"input": "a\\ud83d', "a\ufffd"),
        ('{"input": "a\\ud83dx"}', "a\ufffdx"),
        ('{"input": "a\nb"}', "a\nb"),
        ('{"other": 1}', '{"other": 1}'),
        ("{}", "{}"),
        ('{"input": "\\q"}', "\\q"),
    ],
)
def test_arguments_of_another_form_are_not_lost(text: str, value: Any) -> None:
    for size in (1, len(text)):
        reader = InputReader()
        pieces = [reader.read(text[at : at + size]) for at in range(0, len(text), size)]
        assert "".join([*pieces, reader.finish()]) == value
