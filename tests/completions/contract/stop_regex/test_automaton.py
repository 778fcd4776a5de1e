import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.contract.stop_regex.automaton import RegexSearch, StopRegex, compile_regex
from completions.contract.stop_regex.syntax import RegexError
from tests.operations import counted_operations

leaves = st.sampled_from(
    ["a", "b", "c", ".", "[ab]", "[^a]", r"\d", r"\n", "(?i:B)", "^", "(?m:^)"]
)
patterns = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map("(?:{})".format),
        st.tuples(inner, st.sampled_from(["*", "+?", "?", "{2}", "{1,2}", "{0,2}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)
texts = st.text("abcB1\n", max_size=14)


def compiled(pattern: str) -> StopRegex | None:
    try:
        return StopRegex(pattern)
    except RegexError:
        return None


def search(regex: StopRegex, text: str) -> tuple[int, int] | None:
    found = RegexSearch(regex)
    for end, char in enumerate(text, 1):
        if length := found.step(char):
            return end - length, end
    return None


def search_slowly(pattern: str, text: str) -> tuple[int, int] | None:
    """The leftmost match that ends first, by trying every prefix of the text."""
    for end in range(1, len(text) + 1):
        if match := re.search(pattern, text[:end]):
            return match.span()
    return None


@given(patterns, texts)
def test_the_first_match_is_that_of_re(pattern: str, text: str) -> None:
    regex = compiled(pattern)
    if regex is None:
        assert re.search(pattern, "") or re.search(pattern, "\n")  # it matches the empty text
        return
    assert search(regex, text) == search_slowly(pattern, text)


TAILS = ["".join(chars) for size in range(4) for chars in product("abc1\n", repeat=size)]


@given(st.sampled_from(["a+b", "(ab|b)*c", "[^a]b{2}", "^ab", r"\n\d", "a.?.?b|bc1", "ab"]), texts)
def test_exactly_what_can_become_a_match_is_held(pattern: str, text: str) -> None:
    regex = compile_regex(pattern)
    found = RegexSearch(regex)
    if any(found.step(char) for char in text):
        return
    later = [search(regex, text + tail) for tail in TAILS]
    first = min((span[0] for span in later if span is not None), default=len(text))
    assert found.num_held == len(text) - min(first, len(text))


@given(texts, st.integers(0, 14))
def test_a_copy_goes_its_own_way(text: str, at: int) -> None:
    original = RegexSearch(compile_regex("a+b|b1c"))
    for char in text[:at]:
        original.step(char)
    copy = original.copy()
    ahead = [copy.step(char) for char in text[at:]]
    assert [original.step(char) for char in text[at:]] == ahead


def test_a_match_that_was_passed_over_does_not_hide_the_next() -> None:
    found = RegexSearch(compile_regex("ab+"))
    assert [found.step(char) for char in "xabbab"] == [0, 0, 2, 3, 0, 2]


@pytest.mark.parametrize("pattern", ["ab$", r"ab\Z", "(?:b|ab$)", "^cab$", "a(?:b|$)", "c$|ab"])
@given(texts)
def test_the_end_is_that_of_the_text_so_far(pattern: str, text: str) -> None:
    """As if SGLang searched after every character."""
    assert search(compile_regex(pattern), text) == search_slowly(pattern, text)


def test_the_beginning_is_that_of_the_text() -> None:
    assert search(compile_regex("^ab"), "abab") == (0, 2)
    assert search(compile_regex("^ab"), "cabab") is None


@pytest.mark.parametrize("pattern", ["a*", "", "^", "(?m)^", "(a|)", "(()*){1000}", "$", "^$"])
def test_the_empty_text_is_no_stop(pattern: str) -> None:
    with pytest.raises(RegexError, match="empty"):
        StopRegex(pattern)


@pytest.mark.parametrize(
    "pattern", ["a{999}b{2}", "((((a{99}){99}){99}){99})", "((a?){1000}){99}b"]
)
def test_large_repetitions_are_refused_at_once(pattern: str) -> None:
    with pytest.raises(RegexError, match="too large"):
        StopRegex(pattern)


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(x|x)*y", "(?s).*x.*x.*x.*x.*x.*x.*y"])
def test_time_is_linear_where_backtracking_explodes(pattern: str) -> None:
    found = RegexSearch(StopRegex(pattern))
    with counted_operations() as operations:
        for char in "x" * 20_000:
            found.step(char)
    assert operations.count < 100 * 20_000  # 26 for each character
    assert found.num_held == 20_000
    assert found.step("y") == 20_001


def test_the_cache_is_bounded_and_starts_anew() -> None:
    regex = StopRegex("(a|b)*a(a|b){30}c")
    found = RegexSearch(regex)
    number, largest = 1, 0
    for _ in range(6_000):
        number = number * 1103515245 + 12345 & 0x7FFFFFFF
        assert not found.step("ab"[number >> 16 & 1])
        largest = max(largest, regex.cached)
    assert 10_000 < largest < 30_000
    assert RegexSearch(regex).step("c") == 0
