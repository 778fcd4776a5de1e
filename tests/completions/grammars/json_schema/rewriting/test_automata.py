"""Automata of patterns against Python's `re`, and the patterns written from them."""

import itertools
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.grammars import json_schema
from completions.grammars.json_schema.rewriting import automata, overlaps
from completions.grammars.json_schema.rewriting.automata import Automaton, TooManyStatesError
from completions.grammars.json_schema.rewriting.pattern_writer import write_pattern
from completions.grammars.patterns.network import UnreadablePatternError
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
    machine = automata.compile_pattern(pattern)
    again = automata.compile_pattern(write_pattern(machine))
    complement = automata.compile_pattern(write_pattern(machine.complement()))
    for text in texts():
        expected = found(pattern, text)
        assert machine.accepts(text) is again.accepts(text) is expected
        assert complement.accepts(text) is not expected
    assert (machine & complement).is_empty


@pytest.mark.parametrize("pattern", ["^a", "^(ab|ba)+$", r"\d{1,2}-", "^.{0,2}$", "b$"])
def test_llguidance_reads_what_is_written(pattern: str) -> None:
    complement = write_pattern(automata.compile_pattern(pattern).complement())
    grammar = json_schema.translate({"type": "string", "pattern": complement}).grammar
    for text in ("", "a", "ab", "ba", "abc", "1-", "é", "é-", "a\\nb"):
        expected = not found(pattern, text.replace("\\n", "\n"))
        assert accepts(grammar, f'"{text}"') is expected, text


@given(st.sets(st.text('abé"\\', max_size=3), max_size=5), st.text('abé"\\', max_size=4))
def test_an_automaton_of_literals_accepts_these_alone(listed: set[str], text: str) -> None:
    machine = automata.from_literals(listed)
    assert machine.accepts(text) is (text in listed)
    assert machine.is_empty is (not listed)
    if len(write_pattern(machine.complement())) < 200:
        assert automata.compile_pattern(write_pattern(machine.complement())).accepts(text) is (
            text not in listed
        )


def test_lengths_count_characters() -> None:
    machine = automata.from_lengths(1, 2)
    assert [machine.accepts(text) for text in ("", "é", "🍎🍎", "abc")] == [
        False,
        True,
        True,
        False,
    ]
    assert automata.from_lengths(2, None).accepts("a" * 9)
    with pytest.raises(TooManyStatesError):
        automata.from_lengths(0, 10_000)


@pytest.mark.parametrize(
    "pattern", ["[[:alpha:]]", "(a", r"(a)\1", r"\x{41}", r"\p{Greek}", "(?<=a(?=b))", "(?<=a$)"]
)
def test_what_has_no_automaton_is_not_read(pattern: str) -> None:
    with pytest.raises(UnreadablePatternError):
        automata.compile_pattern(pattern)


def test_an_escaped_backslash_is_no_escape() -> None:
    assert automata.compile_pattern(r"^\\b$").accepts("\\b")


@pytest.mark.parametrize("pattern", ["a.{30}b$", "(a|b)*a(a|b){12}$", "x{4000}"])
def test_patterns_beyond_the_limits_are_refused(pattern: str) -> None:
    with pytest.raises((TooManyStatesError, UnreadablePatternError)):
        automata.compile_pattern(pattern)


def test_patterns_that_share_names_are_split() -> None:
    patterns = {"^a": {"type": "null"}, "b$": True}
    assert overlaps.have_common_names(patterns)
    parts = overlaps.split(patterns)
    assert len(parts) == 3
    for text in texts():
        holders = [part for part in parts if automata.compile_pattern(part).accepts(text)]
        assert len(holders) == (found("^a", text) or found("b$", text))
    assert not overlaps.have_common_names({"^a": True, "^b": True})


def test_an_automaton_without_texts() -> None:
    nothing: Automaton = automata.from_literals([])
    assert not any(
        automata.compile_pattern(write_pattern(nothing)).accepts(text) for text in texts()
    )
