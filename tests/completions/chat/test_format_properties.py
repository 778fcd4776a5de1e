"""Properties of every format: what is written is read back, and no cut of a stream changes it."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.chat.chat_style import THINK_TAGS
from completions.chat.reasoning import ReasoningParser
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool, ToolCall
from tests.completions.chat import reading

PARAMETERS = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "i": {"type": "integer"},
        "f": {"type": "number"},
        "b": {"type": ["boolean", "null"]},
        "l": {"type": "array"},
        "o": {"type": "object"},
        "t": {"$ref": "#/$defs/tree"},
    },
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "s": {"type": "string"},
                "n": {"type": ["number", "null"]},
                "item": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                "t": {"$ref": "#/$defs/tree"},
            },
        }
    },
}
TOOLS = (Tool("weather", None, PARAMETERS), Tool("get.time", None, PARAMETERS), Tool("now"))
PLAIN = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="<>[]{}\uff5c"), max_size=8
)
QUOTED = PLAIN | st.sampled_from(
    ['"', "\\", "it's", "a\nb", " x ", "true", "12", "東京", "[1]", "{}"]
)
NUMBERS = st.integers(-999, 999) | st.floats(-1e6, 1e6).map(lambda number: round(number, 3))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | QUOTED,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=4,
)
TREES = st.recursive(
    st.fixed_dictionaries({}, optional={"s": QUOTED, "n": NUMBERS | st.none()}),
    lambda inner: st.fixed_dictionaries(
        {}, optional={"s": QUOTED, "item": st.lists(inner, max_size=2), "t": inner}
    ),
    max_leaves=4,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "s": QUOTED,
        "i": st.integers(-999, 999),
        "f": NUMBERS,
        "b": st.booleans() | st.none(),
        "l": st.lists(VALUES, max_size=3),
        "o": st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3),
        "t": TREES,
    },
)
UNTYPED = {"l", "o"}
"""Arguments whose parts have no types. A format without quotes cannot tell 1 from a text there."""
CALLS = st.lists(
    st.builds(ToolCall, st.sampled_from(["weather", "get.time"]), ARGUMENTS)
    | st.just(ToolCall("now", {})),
    min_size=1,
    max_size=3,
)


def read(
    form: str, pieces: Sequence[str], is_cut: bool = False
) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the reasoning, the content, and the calls that the service reads."""
    thinking = ReasoningParser(THINK_TAGS[0], is_open=False)
    return reading.read(form, pieces, TOOLS, thinking, is_cut=is_cut)[:3]


@given(calls=CALLS)
def test_what_a_format_writes_it_reads(calls: list[ToolCall]) -> None:
    for form, written in TOOL_FORMATS.items():
        dropped = UNTYPED if getattr(written.arguments, "item", "") else set[str]()
        typed = [
            ToolCall(call.name, {k: v for k, v in call.arguments.items() if k not in dropped})
            for call in calls
            if isinstance(call.arguments, dict)
        ]
        reasoning, content, found = read(form, [written.write(*typed)])
        assert (reasoning, content.strip()) == ("", ""), form
        assert [(name, json.loads(arguments)) for name, arguments in found] == [
            (call.name, call.arguments) for call in typed
        ], form


@pytest.mark.wide
@given(
    calls=CALLS,
    order=st.lists(st.integers(0, 40), max_size=6),
    plain=PLAIN,
    cuts=st.lists(st.floats(0, 1), max_size=12),
)
def test_no_cut_of_a_stream_changes_the_message(
    calls: list[ToolCall], order: list[int], plain: str, cuts: list[float]
) -> None:
    for form, written in TOOL_FORMATS.items():
        whole = written.write(*calls)
        marks = [*written.delimiters, written.opening, written.closing, *THINK_TAGS[0], "\n", plain]
        parts = [*marks, whole, whole[: len(whole) // 2]]
        text = "".join(parts[index % len(parts)] for index in order) + whole
        places = [0, *sorted(int(cut * len(text)) for cut in cuts), len(text)]
        pieces = [text[a:b] for a, b in pairwise(places)]
        message = read(form, [text])
        assert read(form, pieces) == message, (form, text)
        assert read(form, list(text)) == message, (form, text)


@given(
    form=st.sampled_from(sorted(TOOL_FORMATS)),
    name=st.sampled_from(["weather", "get.time"]),
    arguments=ARGUMENTS,
    data=st.data(),
)
def test_a_call_that_a_limit_cuts_shows_nothing_of_its_markup(
    form: str, name: str, arguments: dict[str, object], data: st.DataObject
) -> None:
    written = str(TOOL_FORMATS[form].write(ToolCall(name, arguments)))
    triggers = TOOL_FORMATS[form].list_triggers([tool.name for tool in TOOLS])
    opened = next(written.find(each) + len(each) for each in triggers if each in written)
    cut = written[: data.draw(st.integers(opened, len(written)))]
    for pieces in ([cut], list(cut)):
        _, content, calls = read(form, pieces, is_cut=True)
        assert content == ""
        assert [each for each, _ in calls] in ([], [name])


def test_what_begins_no_call_is_text_also_where_a_limit_cuts_it() -> None:
    for form, text in [
        ("pythonic", "[1] Smith"),
        ("llama3", '{"name": "Bob", "age'),
        ("hermes", "<tool_call>\nis how"),
        ("hermes", "a <tool"),
    ]:
        assert read(form, [text], is_cut=True) == ("", text, [])
        assert read(form, [text]) == ("", text, [])


@pytest.mark.represented_by("hermes", "glm", "deepseek_v3", "gemma4")
@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_an_answer_that_a_limit_cuts_in_the_mark_of_its_first_call_is_empty(form: str) -> None:
    """Where a call is required, each cut answer is one."""
    written = str(TOOL_FORMATS[form].write(ToolCall("weather", {"city": "Rome"})))
    for length in range(1, len(written)):
        for pieces in ([written[:length]], list(written[:length])):
            assert read(form, pieces, is_cut=True)[1] == "", written[:length]
