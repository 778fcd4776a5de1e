"""tools and tool_choice: valid values, their combinations, and errors with their place."""

import pytest

from completions.chat.tools import Tool, ToolChoice
from completions.exceptions import FieldError
from completions.requests.fields.chat.tools import (
    ToolChoiceField,
    ToolObject,
    assign_paths,
    parse_choice,
)

F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TOOLS = (Tool("f"), Tool("g"))
DEEP: dict = {}
for _ in range(300):
    DEEP = {"items": DEEP}


def test_tools_keep_their_place():
    given = [
        ToolObject().read(each)
        for each in (
            F,
            {"type": "function", "function": {"name": "g", "description": "d", "strict": True}},
        )
    ]
    assert assign_paths(given) == (
        Tool("f", None, {"type": "object"}, False, "tools[0]"),
        Tool("g", "d", None, True, "tools[1]"),
    )
    with pytest.raises(FieldError) as caught:
        assign_paths([given[0], given[0]])
    assert caught.value.path == "tools[1].function.name"


@pytest.mark.parametrize(
    ("tool", "path"),
    [
        ({"type": "retrieval"}, "type"),
        ({"type": "function"}, "function"),
        ({"type": "function", "function": {"name": "a b"}}, "function.name"),
        ({"type": "function", "function": {"name": "x" * 65}}, "function.name"),
        (
            {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}},
            "function.parameters.type",
        ),
        (
            {"type": "function", "function": {"name": "f", "parameters": {"properties": []}}},
            "function.parameters.properties",
        ),
        (
            {"type": "function", "function": {"name": "f", "parameters": {"maximum": 2**64}}},
            "function.parameters",
        ),
        (
            {"type": "function", "function": {"name": "f", "parameters": DEEP}},
            "function.parameters",
        ),
    ],
)
def test_bad_tools(tool, path):
    with pytest.raises(FieldError) as caught:
        ToolObject().read(tool)
    assert caught.value.path == path


NAMED_G = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize(
    ("given", "parallel", "expected"),
    [
        (None, None, ToolChoice("auto", None, True)),
        ("auto", False, ToolChoice("auto", None, False)),
        ("required", True, ToolChoice("required", None, True)),
        ("none", None, ToolChoice("none", None, True)),
        (NAMED_G, None, ToolChoice("required", ("g",), False)),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED_G]}},
            None,
            ToolChoice("auto", ("g",), True),
        ),
    ],
)
def test_a_tool_choice_says_which_tools_may_be_called(given, parallel, expected):
    choice = None if given is None else ToolChoiceField().read(given)
    assert parse_choice(choice, parallel, TOOLS) == expected


def test_allowed_tools():
    assert ToolChoice("auto").filter_tools(TOOLS) == TOOLS
    assert ToolChoice("auto", ("g",)).filter_tools(TOOLS) == TOOLS[1:]
    assert ToolChoice("none").filter_tools(TOOLS) == ()


@pytest.mark.parametrize(
    "given",
    [
        "any",
        3,
        {"type": "function"},
        {"type": "allowed_tools"},
        {**NAMED_G, "allowed_tools": {"mode": "auto", "tools": [NAMED_G]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [NAMED_G]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
    ],
)
def test_bad_choices(given):
    with pytest.raises(FieldError):
        ToolChoiceField().read(given)


def test_choices_that_need_tools():
    assert parse_choice(None, None, ()) == ToolChoice("none")
    for choice, tools in [(ToolChoice("required"), ()), (ToolChoice("auto", ("h",)), TOOLS)]:
        with pytest.raises(FieldError) as caught:
            parse_choice(choice, None, tools)
        assert caught.value.path == "tool_choice"
