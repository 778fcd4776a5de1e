"""What a pattern of ECMA-262 with the flag u means, by the texts in which it is found."""

import pytest

from completions.grammars.patterns.language import build_network


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^[a-z--b]$", ["-", "A", "a", "z"], ["!"]),
        ("^[--/]$", ["-", ".", "/"], [","]),
        ("^[a&&b]$", ["a", "&", "b"], ["c"]),
        ("^[[a]$", ["[", "a"], ["b"]),
        ("^.$", ["a", "\x85", "😀", "x"], ["\n", "\r", "\u2028", "\u2029", ""]),
        (r"^\s$", [" ", "\t", "\v", "\xa0", "\ufeff", "\u2028", "\u3000"], ["\x85", "\u180e"]),
        (r"^\d\w\W$", ["1_é"], ["\u0661a!", "1é!"]),
        (r"^\ud83d\ude00$", ["😀"], ["\ud7ff"]),
        (r"^[\ud83d\ude00-\ud83d\ude02]$", ["😁"], ["😃", "a"]),
        (r"^\u{1f600}\x41\cJ\0$", ["😀A\n\x00"], ["😀A\n0"]),
        (r"^[\b]$", ["\b"], ["b"]),
        ("^[^]$", ["a", "\n", "\u2028"], [""]),
        ("^[]$", [], ["", "a"]),
        (r"^[^\ud800-\udfff]$", ["a", "\ud7ff", "\ue000"], [""]),
        (r"^\-\_\@\"$", ['-_@"'], []),
        ("^]}$", ["]}"], []),
        ("^(?<x>a)(?P<y>b)$", ["ab"], ["a"]),
        ("^(?i:k)K$", ["kK", "KK", "\u212aK"], ["kk"]),
        ("^(?i)straße$", ["STRAẞE"], ["STRASSE"]),
        ("(?m)^b$", ["a\nb", "b\u2028c"], ["ab"]),
        ("^a(?s).b|c.d$", ["a\nb", "c\nd"], []),
        ("^(a(?s).)b.$", ["a\nbc"], ["a\nb\n"]),
        (r"^\p{Lu}\p{Letter}\p{gc=Nd}\P{L}$", ["Éé\u0663!"], ["éÉ1!", "Éé1é"]),
        (r"^\p{ASCII}\p{Any}$", ["a😀"], ["éa"]),
        ("^a{2}b{1,}c{0,1}?$", ["aab", "aabbc"], ["ab", "aacc"]),
        ("^^a$$", ["a"], ["aa"]),
        ("a$b|$c|d^", [], ["ab", "c", "d", "a\nb"]),
    ],
)
def test_a_pattern_is_found_in_its_good_texts_only(
    pattern: str, good: list[str], bad: list[str]
) -> None:
    machine = build_network(pattern)
    assert [text for text in good if not machine.accepts(text)] == []
    assert [text for text in bad if machine.accepts(text)] == []
