"""Tokens of thoughts, counted by what each contributes to the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.chat.reasoning import ReasoningCounter, ThinkTags

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
