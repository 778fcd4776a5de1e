"""Faults of grammars in Lark: each refusal says what is wrong, where, and what to write instead."""

import pytest

from completions.grammars import Constraint, translate
from completions.grammars.exceptions import GrammarError
from completions.grammars.lark_messages import explain


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", None, "no rule named start; add the rule"),
        ('root: "a"', None, "no rule named start"),
        ("start", (1, 6), "the end of the line cannot stand here: a name is in lower case"),
        ('start = "a"', (1, 7), "= cannot stand here: a name is in lower case"),
        ('start ::= "a"', (1, 8), "write : instead of ::="),
        ('Start: "a"', (1, 2), "Start cannot stand here: a name is in lower case"),
        ('start: "a\\n" ;', (1, 14), "; cannot stand here"),
        ('start: "\\\\" ;', (1, 13), "; cannot stand here"),
        ('start: "\\x41" "\\q"', (1, 17), "the escape \\q is unknown"),
        ("start: \"a\" /\\d/ 'x'", (1, 17), "' cannot stand here; write a string in double"),
        ('start: "é" %foo', (1, 13), "no directive %foo"),
        ('start: %json {"type":"string"} ;', (1, None), "a part of it cannot be read"),
        ('start: %json {\n"type":"string"} ;', (2, 18), "; cannot stand here"),
        ('start: %json {"type":"string"} ; %json {"type":"null"}', (1, None), "cannot be read"),
        ("start: <[1-99999999999]>", (1, 8), "a number is too large"),
        ('%llguidance 3\nstart: "a"', (1, 1), "must be an object of its options"),
        ("start: " + "a" * 9999, (1, 8), "aaa... is not defined"),
        ('start: Ab\nAb: "x"', (2, 2), "or in upper case, for a terminal"),
        ('1a: "x"', (1, 1), "1 cannot begin a definition"),
        ("start: a", (1, 8), "a is not defined; define it as a: ..., or write a string"),
        ('start: A\nA: b\nb: "x"', (2, 4), "the rule b cannot stand in a terminal; make it"),
        ('start: A\nA: A "x" | "y"', (2, 4), "the terminal A contains itself; make it a rule"),
        ('start: "a"\nstart: "b"', (2, 8), "start is defined twice; write one definition with |"),
        ('start: "a', (1, 10), "does not end; close it with"),
        ("start: /a", (2, 1), "does not end; close it with"),
        ('start: "\\q"', (1, 10), "the escape \\q is unknown in a string"),
        ("start: 'a'", (1, 8), "' cannot stand here; write a string in double quotes"),
        ("start: $a", (1, 8), "$ cannot stand here; write a string as"),
        ('start: "a";', (1, 11), "remove the ;"),
        ('%foo "a"', (1, 2), "no directive %foo; use %ignore, %import"),
        ('start: ("a"', (1, 12), "the end of the line cannot stand here; write ')'"),
        ('start: "a")', (1, 11), "this ) has no matching (; remove it"),
        ('start: {"a"}', (1, 8), "{ cannot stand here; write a string, a pattern, a name"),
        ('start: *"a"', (1, 8), "* has nothing to repeat; write a string"),
        ('start: "a"{b}', (1, 12), "b cannot stand here; write a number"),
        ('start: "a"{3,2}', (1, 8), "{3,2} has a minimum above its maximum"),
        ('start: "a"{0}', (1, 14), "a repetition of at most 0 times"),
        ('start: "ab".."z"', (1, 8), "a range is between single characters"),
        ('start: "z".."a"', (1, 8), "the range 'z'..'a' is reversed"),
        ('start: /a/ & "b"', (1, 8), "& joins only terminals; define a terminal"),
        ("%import common.FOO", (1, 1), "no common.FOO to import; use one of: common.DIGIT"),
        ("%declare A", (1, 1), "%declare is not supported; define the terminal"),
        ('start.2: "a"', (1, 10), "a priority is not supported; remove the number"),
        ('start: b{"a"}\nb{x}: x', (2, 7), "templates are not supported; write out the rule"),
        ('start[foo=1]: "a"', (1, 11), "no attribute foo; use lazy, suffix or capture"),
        ('start[foo]: "a"', (1, 10), "only lazy and capture are attributes without a value"),
        ('start: A\nA[lazy]: "x"', (2, 2), "only rules, whose names are in lower case, can have"),
        ('start[stop="x"]: /.*/', (1, 7), "a rule cannot have stop; write suffix instead"),
        ("start: <nope>", (1, 8), "the model has no special token <nope>"),
        ("start: <[99999999]>", (1, 8), "the model has no token 99999999; give smaller ids"),
        ("start: <[5-1]>", (1, 8), "the token range 5-1 cannot be read; write ids as in"),
        ("start: <[a]>", (1, 8), "token ids are numbers, as in <[1,5-9]>"),
        ("start: A\nA: <[5]>", (2, 4), "<[5]> is a token, which can stand only in rules"),
        ("start: A\nA: %json {}", (2, 4), "%json is a grammar, which can stand only in rules"),
        ("start: %json [1]", (1, 8), "a schema after %json must be an object"),
        ('start: %json {"type": ', None, "what follows %json is not a JSON object: EOF"),
        ('start: %regex {"pattern": "a"}', None, "what follows %regex must be an object with"),
        ("start: %regex {}", (1, 8), "what follows %regex must be an object with"),
        ("%llguidance 1", (1, 1), "what follows %llguidance must be an object of its options"),
        ("start: <[,]>", (1, 8), "the token range is empty"),
        ("start: <[^*]>", (1, 8), "a wildcard stands alone"),
        ("start: <a b>", (1, 10), "a space cannot stand here"),
        ('start: "a"i.."z"', (1, 17), "a range has no flags"),
        ("start: /a/l", (1, 8), "the flag l is not supported; use i, m, s or x"),
        ('start: "a"{-1,}', (1, 8), "a repetition cannot have -1 as its minimum"),
        (
            'start: r\nr[lazy]: "a" r | "b"',
            (2, 10),
            "the rule r contains itself, which a rule with",
        ),
        ('start: "<" r ">"\nr[lazy]: /[a-z]*/', None, "a lazy rule cannot match the empty text"),
        ("start[max_chars=3]: /a+/", (1, 17), "bound its characters, as in /.{0,80}/"),
        ('start: r\nr[suffix="x", suffix="y"]: /a+/', (2, 25), "a rule has one suffix"),
        ('start::\u200b "a\u200b"', (1, 8), "cannot stand here"),
        ('start:: "a\u200b"', (1, 9), "cannot stand here"),
        ("start: @other", None, "no grammar named other; give one of the grammars this name"),
        ("start: /a(/", (1, 8), 'invalid pattern "a(": this ( is not closed; write a )'),
        ("start: start", None, "no text can match it: a part contains itself"),
    ],
)
def test_a_refusal_of_lark_says_what_to_write(
    text: str, place: tuple[int, int | None] | None, reason: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        translate(Constraint("grammar", {"type": "lark", "value": text}))
    assert reason in caught.value.message
    assert (caught.value.line, caught.value.column) == (place or (None, None))


def test_a_refusal_without_a_place_names_no_cause() -> None:
    grammars = [{"lark_grammar": "start: @b ;"}, {"name": "b", "lark_grammar": "start: @b ;"}]
    with pytest.raises(GrammarError, match="a part of it cannot be read") as caught:
        translate(Constraint("grammar", {"type": "llguidance", "value": {"grammars": grammars}}))
    assert caught.value.line is None


def test_two_grammars_of_one_name_are_refused() -> None:
    grammars = [{"name": "a", "lark_grammar": f'start: "{text}"'} for text in "bc"]
    with pytest.raises(GrammarError, match="two grammars are named a; rename one"):
        translate(Constraint("grammar", {"type": "llguidance", "value": {"grammars": grammars}}))


@pytest.mark.parametrize("value", [" stop=1", "capture", "]", '\\", stop=1'])
def test_a_quoted_value_is_no_attribute(value: str) -> None:
    text = f'start[suffix="{value}"]: /a+/'
    assert not translate(Constraint("grammar", {"type": "lark", "value": text})).warnings


@pytest.mark.parametrize("opening", ['"\\', "/\\", '"', "/"])
def test_a_long_line_is_read_once(opening: str) -> None:
    """A scan to the end of the line from each of these would take minutes."""
    line = opening * 100_000
    assert "does not end" in explain("1(1): lexer error", line, 1, len(line) + 1)
