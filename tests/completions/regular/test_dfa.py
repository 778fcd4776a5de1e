"""Automata of patterns against Python's `re`, and the patterns written from them."""

import itertools
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.grammars import json_schema
from completions.grammars.json_schema.rewriting import overlaps
from completions.grammars.patterns.language import compile_pattern
from completions.regular import dfa
from completions.regular.dfa import Dfa
from completions.regular.elimination import write_pattern
from completions.regular.network import UnreadablePatternError
from completions.regular.nfa import TooLargeError
from tests.completions.grammars.byte_matcher import accepts

ALPHABET = "abc0- \né"
PATTERNS = (
    "^a",
    "b$",
    "a|b",
    "^(ab|ba)+$",
    "^[a-c]{2,4}$",
    "^$",
    "",
    "^a|b$",
    "^(a|b$)",
    r"\d{1,2}-",
    r"^\w*$",
    r"^\S+$",
    "^.{0,2}$",
    "^[^a-b]*$",
    "(?:a|bc)*c",
    r"^a\-?b",
    "^(?P<x>a)+$",
    "a{0}b",
)


def texts() -> Iterator[str]:
    for length in range(4):
        yield from map("".join, itertools.product(ALPHABET, repeat=length))


def found(pattern: str, text: str) -> bool:
    # Python's $ also matches before a final newline.
    return re.search(re.sub(r"\$", r"\\Z", pattern), text, re.ASCII) is not None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_and_their_complements(pattern: str) -> None:
    machine = compile_pattern(pattern)
    again = compile_pattern(write_pattern(machine))
    complement = compile_pattern(write_pattern(machine.complement()))
    for text in texts():
        expected = found(pattern, text)
        assert machine.accepts(text) is again.accepts(text) is expected
        assert complement.accepts(text) is not expected
    assert (machine & complement).is_empty


@pytest.mark.parametrize("pattern", ["^a", "^(ab|ba)+$", r"\d{1,2}-", "^.{0,2}$", "b$"])
def test_llguidance_reads_what_is_written(pattern: str) -> None:
    complement = write_pattern(compile_pattern(pattern).complement())
    grammar = json_schema.translate({"type": "string", "pattern": complement}).grammar
    for text in ("", "a", "ab", "ba", "abc", "1-", "é", "é-", "a\\nb"):
        expected = not found(pattern, text.replace("\\n", "\n"))
        assert accepts(grammar, f'"{text}"') is expected, text


@given(st.sets(st.text('abé"\\', max_size=3), max_size=5), st.text('abé"\\', max_size=4))
def test_an_automaton_of_literals_accepts_these_alone(listed: set[str], text: str) -> None:
    machine = dfa.from_literals(listed)
    assert machine.accepts(text) is (text in listed)
    assert machine.is_empty is (not listed)
    if len(write_pattern(machine.complement())) < 200:
        assert compile_pattern(write_pattern(machine.complement())).accepts(text) is (
            text not in listed
        )


def test_lengths_count_characters() -> None:
    machine = dfa.from_lengths(1, 2)
    assert [machine.accepts(text) for text in ("", "é", "🍎🍎", "abc")] == [
        False,
        True,
        True,
        False,
    ]
    assert dfa.from_lengths(2, None).accepts("a" * 9)
    with pytest.raises(TooLargeError):
        dfa.from_lengths(0, 10_000)


@pytest.mark.parametrize(
    "pattern", ["[[:alpha:]]", "(a", r"(a)\1", r"\x{41}", r"\p{Greek}", "(?<=a(?=b))", "(?<=a$)"]
)
def test_what_has_no_automaton_is_not_read(pattern: str) -> None:
    with pytest.raises(UnreadablePatternError):
        compile_pattern(pattern)


def test_an_escaped_backslash_is_no_escape() -> None:
    assert compile_pattern(r"^\\b$").accepts("\\b")


@pytest.mark.parametrize("pattern", ["a.{30}b$", "(a|b)*a(a|b){12}$", "x{4000}"])
def test_patterns_beyond_the_limits_are_refused(pattern: str) -> None:
    with pytest.raises((TooLargeError, UnreadablePatternError)):
        compile_pattern(pattern)


def test_patterns_that_share_names_are_split() -> None:
    patterns = {"^a": {"type": "null"}, "b$": True}
    assert overlaps.have_common_names(patterns)
    parts = overlaps.split(patterns)
    assert len(parts) == 3
    for text in texts():
        holders = [part for part in parts if compile_pattern(part).accepts(text)]
        assert len(holders) == (found("^a", text) or found("b$", text))
    assert not overlaps.have_common_names({"^a": True, "^b": True})


def test_an_automaton_without_texts() -> None:
    nothing: Dfa = dfa.from_literals([])
    assert not any(compile_pattern(write_pattern(nothing)).accepts(text) for text in texts())
