"""Grammars of texts inside JSON strings: unescaped, each text is one of the first grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from completions.grammars import tokens
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema.schema import dump
from completions.grammars.lark_quoting import quote


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(tokens.load(None), grammar, log_level=0)
    assert not matcher.get_error()
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


GRAMMARS = {
    "strings": r'start: "a\"b" "\\" ("\n" | "\t\u0041")',
    "a string of any case": r'start: "A\"z"i',
    "a pattern": r'start: /[^"]*/ "!"',
    "a pattern with flags": r"start: /a.*b/si",
    "a pattern with slashes": r"start: /a\/b|\\\//",
    "a range": r'start: ("!".."#")+',
    "classes": r"start: /[\w\s]|\d{2}/ /[^\W]/",
    "terminals": 'start: NAME (", " NAME)*\nNAME: /[a-z"]{1,3}/ | "\\\\x"  // "comment"',
    "white space": 'start: "a" "b"\n%import common.WS\n%ignore WS',
    "an import with another name": 'start: S ";"\n%import common.ESCAPED_STRING -> S',
    "a harmless import": "start: INT\n%import common.INT",
    "counts": 'start: "\\n"~2..3 "\\""? [ "\\\\" ]',
}
_NOTABLE = [
    'a"b\\\n',
    'A"Z',
    "a/b",
    "\\/",
    '!"#',
    "aé",
    "12é",
    'a, b"',
    "a \n b",
    '"\\"";',
    '"";',
    "42",
]
_TEXTS = st.text(st.sampled_from('ab"\\\n\t/ !#,;xA09'), max_size=6) | st.sampled_from(_NOTABLE)


@pytest.mark.represented_by("strings", "a pattern", "counts")
@pytest.mark.parametrize("name", GRAMMARS)
@given(_TEXTS)
def test_a_quoted_text_matches_where_the_text_does(name: str, text: str) -> None:
    grammar = GRAMMARS[name]
    is_quoted, is_text = accepts(quote(grammar), dump(text)[1:-1]), accepts(grammar, text)
    assert is_text or not is_quoted
    assert is_quoted == is_text or not text.isascii()  # \\w has ASCII letters alone


@pytest.mark.parametrize("name", GRAMMARS)
def test_each_grammar_has_a_text(name: str) -> None:
    texts = ['a"b\\\n', 'A"Z', '"!', "a\nb", "a/b", '!"#', "ab", 'a, b"', "a \n b", '"\\"";']
    texts += ["!", "42", '\n\n"\\']
    assert any(accepts(GRAMMARS[name], text) for text in texts)


@pytest.mark.parametrize(
    ("grammar", "line", "column"),
    [
        ('start: "a"\nx: %json {"type": "object"}', 2, 4),
        ("start: <|end|>", 1, 8),
        ("start: A & B\nA: /a/\nB: /b/", 1, 10),
        ("start: /a(?<=b)/", 1, 8),
        ("start: /a)/", 1, 10),
        ("start: ~A\nA: /a/", 1, 8),
        ("start: /\\x01/", 1, 8),
    ],
)
def test_what_cannot_be_quoted_is_refused(grammar: str, line: int, column: int) -> None:
    with pytest.raises(GrammarError) as caught:
        quote(grammar)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_a_string_that_json_cannot_read_is_refused() -> None:
    with pytest.raises(GrammarError, match="JSON string"):
        quote(r'start: "\q"')
