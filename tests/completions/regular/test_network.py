"""Look-around, anywhere in a pattern."""

import pytest

from completions.grammars.patterns.language import build_network, compile_pattern


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^(?!ab)", ["", "ba", "aab"], ["ab", "abc"]),
        ("^(?=.*b)a", ["ab", "a-b"], ["a", "ba"]),
        ("a(?=b$)", ["ab", "aab"], ["abc", "a"]),
        ("a(?!b)", ["a", "aba"], ["ab"]),
        ("^(?:(?!--).)*$", ["", "-a-"], ["a--b"]),
        ("^(?:(?=ab)a|(?!b)c|bb)+", ["ab", "c", "bb"], ["ac", "b"]),
        ("^(?=(?=a)[^b]*c)(?!(?!a).)", ["ac", "a-c"], ["bc", "abc"]),
        ("(?<=a)b", ["ab", "cab"], ["b", "cb"]),
        ("(?<!a)b", ["b", "cb", "abb"], ["ab"]),
        ("(?<=^a+)b$", ["ab", "aab"], ["bab", "b"]),
        ("(?<=(?<!x)a)b", ["ab", "yab"], ["xab"]),
        (r"\bfoo\b", ["foo", "a foo.", "éfoo"], ["afoo", "foo_"]),
        (r"a\Bb", ["ab"], ["a-b", "a b"]),
        (r"^(?!.*\bsecret\b)", ["secrets"], ["a secret", "secret"]),
    ],
)
def test_a_pattern_is_found_in_its_good_texts_only(
    pattern: str, good: list[str], bad: list[str]
) -> None:
    for machine in (build_network(pattern), compile_pattern(pattern)):
        assert [text for text in good if not machine.accepts(text)] == []
        assert [text for text in bad if machine.accepts(text)] == []
