"""Tokens of thoughts, counted by what each contributes to the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.chat.reasoning import ReasoningCounter, ReasoningParser, ThinkTags

MARKS = ThinkTags("<think>", "</think>")


def count(*tokens: bytes, **options: bool | list[str]) -> int:
    counter = ReasoningCounter(MARKS, **{"is_open": False, **options})
    counter.push(tokens)
    return counter.count


@pytest.mark.parametrize(
    ("tokens", "counted"),
    [
        ((b"<think>", b"a", b"</think>", b"b"), 3),
        ((b"\n", b"<th", b"ink>a", b"b</", b"think>\n", b"c"), 3),
        ((b"no", b"<think>", b"a"), 0),
        ((b"<thank", b"s>"), 0),
        ((b"<think>", b"a"), 2),
        ((b"<think>a</think>", b"b"), 1),
        ((), 0),
    ],
)
def test_from_the_begin_mark_to_the_end_mark(tokens, counted):
    assert count(*tokens) == counted


def test_a_template_may_have_begun_them():
    assert count(b"a", b"</think>", b"b", is_open=True) == 2


def test_special_tokens_before_them_do_not_count():
    assert count(b"<|x|>", b"<think>", b"</think>", hidden=["<|x|>"]) == 2


@given(st.lists(st.sampled_from([b"a", b"<", b"/", b"think", b">", b"</think>"])))
def test_the_result_does_not_depend_on_the_grouping(tokens):
    apart = ReasoningCounter(MARKS, is_open=True)
    for token in tokens:
        apart.push([token])
    assert apart.count == count(*tokens, is_open=True)


@given(st.lists(st.integers(1, 7)))
def test_a_call_may_end_the_reasoning(cuts: list[int]) -> None:
    text = "Hm <b>\n\n<tool_call>\n<function=now>"
    parser = ReasoningParser(MARKS, is_open=True, calls=["<tool_call>"])
    reasoning, answer, at = "", "", 0
    for piece in [*cuts, len(text)]:
        thought, said = parser.push(text[at : at + piece])
        reasoning, answer, at = reasoning + thought, answer + said, at + piece
    assert (reasoning, answer + parser.finish()[1]) == ("Hm <b>", "<tool_call>\n<function=now>")
    assert not parser.is_reasoning


def test_the_count_ends_with_the_call_too() -> None:
    counter = ReasoningCounter(MARKS, is_open=True, calls=["<tool_call>"])
    counter.push([b"Hm", b" so", b"<tool", b"_call>", b"\n", b"now"])
    assert counter.count == 4
