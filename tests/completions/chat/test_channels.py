"""Harmony's channels: reasoning, what is said before calls, calls and the answer."""

from pathlib import Path
from typing import Any

import pytest

from completions.chat.grammar import Reasoning, make_answer_constraint
from completions.chat.reasoning import ReasoningParser, ThinkTags
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import ToolCall
from completions.grammars import Constraint
from tests.completions.chat import reading
from tests.completions.chat.format_rows import TOOLS
from tests.completions.chat.test_grammar import GOOD, Bench, calls

MARKS = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>"]
TAGS = ThinkTags("<|channel|>analysis<|message|>", "<|end|>")
CHANNELS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}'


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "num_calls"),
    [
        (f"{CHANNELS}<|channel|>final<|message|>Yes.", "Hm.", "Yes.", 0),
        ("<|channel|>final<|message|>Yes.", "", "Yes.", 0),
        (f"{CHANNELS}{CALL}", "Hm.", "", 1),
        (
            f"{CHANNELS}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}",
            "Hm.",
            "I look.",
            1,
        ),
        ("<|channel|>analysis<|message|>Hm", "Hm", "", 0),
        (
            f"{CHANNELS}<|channel|>analysis<|message|>So.<|end|><|start|>assistant"
            "<|channel|>final<|message|>Yes.",
            "Hm.\nSo.",
            "Yes.",
            0,
        ),
        (
            f"{CHANNELS}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
            f"<|channel|>analysis<|message|>So.<|end|><|start|>assistant{CALL}<|end|>"
            f"<|start|>assistant{CALL}",
            "Hm.\nSo.",
            "I look.",
            2,
        ),
    ],
)
def test_channels_are_parts_of_a_message(
    text: str, reasoning: str, content: str, num_calls: int
) -> None:
    form = TOOL_FORMATS["openai"]
    for pieces in ([text], list(text)):
        thinking = ReasoningParser(TAGS, is_open=False, lead=form.content[0])
        message = reading.read("openai", pieces, TOOLS, thinking)
        assert (message.reasoning, message.content) == (reasoning, content)
        assert len(message.calls) == num_calls


@pytest.mark.parametrize("special", [False, True])
def test_channels_of_a_constrained_answer(tmp_path: Path, special: bool) -> None:
    form = TOOL_FORMATS["openai"]
    bench = Bench(tmp_path, MARKS if special else [])
    thoughts = Reasoning(TAGS, is_open=False, lead=form.content[0])
    answer = Constraint("regex", "[0-9]+")
    for asked, text, fits in (
        (None, "<|channel|>final<|message|>12", True),
        (None, "<|channel|>analysis<|message|>Hm.<|end|><|channel|>final<|message|>12", True),
        (None, f"{CHANNELS}<|channel|>final<|message|>12", True),
        (None, f"{CHANNELS}{CHANNELS}<|channel|>final<|message|>12", True),
        (calls("openai"), f"{CHANNELS}{form.write(GOOD, GOOD)}", True),
        (None, "12", False),
        (None, "<|channel|>final<|message|>a", False),
        (calls("openai"), form.write(GOOD), True),
        (calls("openai"), "<|channel|>final<|message|>12", True),
    ):
        wanted = make_answer_constraint(thoughts, asked, answer, tool_format=form)
        assert bench.accepts(text, wanted) is fits, text


ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|>"
NEXT = "<|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|>"
IN_ROLE = " to=functions.weather<|channel|>commentary <|constrain|>json<|message|>"


@pytest.mark.represented_by("choice0--True-False", "choice0--True-True")
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    ("choice", "begin", "fits"),
    [
        ({}, "", True),
        ({}, f"{ANALYSIS}{NEXT}", True),
        ({}, f"{PREAMBLE}{NEXT}", True),
        ({}, f"{ANALYSIS}{NEXT}{PREAMBLE}{NEXT}", True),
        ({}, f"{ANALYSIS}{NEXT}{PREAMBLE}{NEXT}{PREAMBLE}{NEXT}", True),
        ({"parallel": False}, f"{PREAMBLE}{NEXT}", True),
        ({"mode": "required"}, f"{ANALYSIS}{NEXT}", True),
        ({"mode": "required"}, f"{PREAMBLE}{NEXT}", False),
    ],
)
def test_what_may_stand_before_a_call(
    tmp_path: Path, special: bool, choice: dict[str, Any], begin: str, fits: bool
) -> None:
    form = TOOL_FORMATS["openai"]
    bench = Bench(tmp_path, MARKS if special else [])
    asked, thoughts = calls("openai", **choice), Reasoning(TAGS, False, lead=form.content[0])
    good, bad = form.write(GOOD), form.write(ToolCall("weather", {"city": "Rome"}))
    in_role = IN_ROLE + GOOD.text
    for call in (good, in_role):
        assert bench.fits(f"{begin}{call}", asked, thoughts) is fits
        (read,) = reading.read("openai", [f"{begin}{call}"], asked.tools).calls
        assert read == ("weather", GOOD.text)
    assert not bench.fits(begin + bad, asked, thoughts)
    assert not bench.fits(begin + in_role[:-1], asked, thoughts)
    if choice != {"parallel": False}:
        assert bench.fits(f"{begin}{good}<|end|>{NEXT}{in_role}", asked, thoughts) is fits


@pytest.mark.parametrize("special", [False, True])
def test_an_answer_may_follow_what_is_said_in_commentary(tmp_path: Path, special: bool) -> None:
    bench = Bench(tmp_path, MARKS if special else [])
    asked = calls("openai")
    text = f"{PREAMBLE}{NEXT}<|channel|>final<|message|>12"
    assert bench.fits(text, asked)
    answer = Constraint("regex", "[0-9]+")
    assert not bench.fits(text, asked, None, answer)  # a call would not be found behind it
    assert reading.read("openai", [text], asked.tools).content == "I look.12"
