"""Faults of patterns: each refusal says what to write instead, whatever holds the pattern."""

from typing import Any

import pytest

from completions.grammars import Constraint, translate
from completions.grammars.exceptions import GrammarError
from completions.grammars.messages import format_value

FAULTS = [
    ("a(", "this ( is not closed; write a )"),
    ("a)", "this ) has no matching (; write \\)"),
    ("[a", "this character class is not closed; write a ]"),
    ("[z-a]", "this range is reversed; write the smaller character first"),
    ("a|*", "nothing to repeat before this; write a backslash"),
    ("a{2,1}", "a minimum above its maximum; write the smaller number first"),
    ("\\q", "this escape is unknown; write the character without a backslash"),
    ("[a-\\d]", "a range is between two characters"),
    ("a{2", "write a repetition as {m}, {m,} or {m,n}"),
    ("a{,3}", "write a repetition as {m}, {m,} or {m,n}"),
    ("\\xZZ", "write one as in \\x41, \\u0041 or \\u{1F600}"),
    ("\\x{110000}", "write one as in \\x41, \\u0041 or \\u{1F600}"),
    ("\\p{Foo}", "this Unicode property is unknown; write one as in \\p{Lu}"),
    ("(?ii)a", "this flag is given twice"),
    ("(a)\\1", "back-references are not supported; write out"),
]
OF_PATTERN = [
    ("a**", "nothing to repeat before this"),
    ("(?=a)*", "nothing to repeat before this"),
    ("\\p", "this Unicode property is unknown"),
    ("\\c1", "\\c takes a letter"),
    ("\\01", "an octal escape is not in ECMA-262"),
    ("\\u{110000}", "write one as in \\x41, \\u0041 or \\u{1F600}"),
    ("\\Aa\\z", "\\A is not in ECMA-262; write ^"),
    ("(?z)a", "the flags of a group are i, m and s"),
    ("(?>a)", "write a group as (...), (?:...) or (?<name>...)"),
    ("[[:alpha:]]", "[:alpha:] is not in ECMA-262; write [a-zA-Z]"),
    ("(?i)\\p{Greek}", "\\p{Greek} has no meaning where case is ignored"),
    ("a(?=b{400})", "needs too many states; give smaller counts"),
    ("a(?=\\p{Greek})", "write a general category, as in \\p{Lu}"),
    ("b(?<=a(?=b))", "it looks ahead inside a look-behind"),
]
"""Faults of ECMA-262, and of what automata cannot express."""
OF_REGEX = [
    ("[\\b]", "write \\x08 for a backspace"),
    ("\\p", "this escape ends too early"),
    ("(?z)a", "write a group as (...), (?:...) or (?P<name>...)"),
    ("(?P<a>x)(?P<a>y)", "two groups have this name; rename one"),
    ("(?P<1>x)", "write a named group as (?P<name>...)"),
    ("(?-u)\\xff", "leave out (?-u)"),
    ("(?=a)b", "look-ahead and look-behind are not supported; write out"),
    ("a\\bb", "word boundaries (\\b, \\B, \\<, \\>) are not supported"),
    ("a^b", "^ is supported at the beginning of a pattern only; write \\^"),
    ("a$b", "$ is supported at the end of a pattern only; write \\$"),
    ("a\\<b", "word boundaries (\\b, \\B, \\<, \\>) are not supported"),
]
"""Faults of Rust's syntax, which have a meaning or other words in ECMA-262."""


@pytest.mark.parametrize(("pattern", "advice"), OF_REGEX)
def test_a_refusal_of_a_regex_has_a_place(pattern: str, advice: str) -> None:
    with pytest.raises(GrammarError) as caught:
        translate(Constraint("regex", pattern))
    assert advice in caught.value.message
    assert caught.value.line == 1


@pytest.mark.parametrize(("pattern", "advice"), FAULTS)
def test_a_refusal_of_any_regular_expression_says_what_to_write(pattern: str, advice: str) -> None:
    with pytest.raises(GrammarError) as caught:
        translate(Constraint("regex", pattern))
    assert advice in caught.value.message
    assert caught.value.line == 1


@pytest.mark.parametrize(("pattern", "advice"), [*FAULTS, *OF_PATTERN])
def test_a_refusal_of_a_pattern_says_what_to_write(pattern: str, advice: str) -> None:
    escaped = pattern.replace("~", "~0").replace("/", "~1")
    for schema, pointer in (
        ({"type": "string", "pattern": pattern}, "/pattern"),
        (
            {"type": "object", "patternProperties": {"a": {}, pattern: {}}},
            f"/patternProperties/{escaped}",
        ),
    ):
        with pytest.raises(GrammarError) as caught:
            translate(Constraint("json_schema", schema))
        assert advice in caught.value.message
        assert caught.value.pointer == pointer


def test_a_value_in_a_message_is_short() -> None:
    assert format_value({"a": [None, "ü"]}) == '{"a": [null, "ü"]}'
    assert len(format_value("x" * 1000)) == 64


LONG = "a" * 20_000
DIGITS = int("9" * 4000)
NAMES = {"properties": {LONG: {"type": "foo"}}}
PARAMETERS = {"type": "qwen_xml_parameter"}
"""The content of structural tags."""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ebnf", f"root ::= {LONG}"),
        ("ebnf", f"root ::= {LONG.upper()}()"),
        ("ebnf", f'{LONG} ::= {LONG} "a"\nroot ::= {LONG}'),
        ("ebnf", f'root ::= {LONG}\n{LONG} ::= ("a"{{10000}}){{10000}}'),
        ("ebnf", f'root ::= "a"\n{LONG} ::= "a"\n{LONG} ::= "a"'),
        ("ebnf", f'root ::= "\\x{LONG}"'),
        ("ebnf", f'root[max_chars="{LONG}"] ::= "a"'),
        ("ebnf", f'root ::= Regex("a", {LONG}=true)'),
        ("ebnf", f'root ::= Regex("\\\\u{{{"1" * 20_000}}}")'),
        ("ebnf", f'root ::= TagDispatch(("{LONG}", x), excludes=("{LONG}"))\nx ::= "a"'),
        ("ebnf", f'root ::= TagDispatch(("{LONG}", x), excludes=("{LONG}b"))\nx ::= "a"'),
        ("json_schema", {f"min-{'-' * 20_000}Length": 1}),
        ("json_schema", {f"min{'_' * 20_000}Length.": 1}),
        ("json_schema", {LONG: 1, "type": "foo"}),
        ("json_schema", {"required": [LONG], "additionalProperties": False, "type": "object"}),
        ("json_schema", {"minLength": DIGITS}),
        ("json_schema", {"multipleOf": DIGITS}),
        ("json_schema", {"multipleOf": -DIGITS}),
        ("json_schema", NAMES),
        ("structural_tag", {**PARAMETERS, "json_schema": {"type": "object", "required": [LONG]}}),
        ("structural_tag", {**PARAMETERS, "json_schema": {"type": "object", LONG: 1}}),
        ("structural_tag", {"type": "json_schema", "json_schema": NAMES}),
        ("structural_tag", {"type": "repeat", "min": -DIGITS, "max": 1, "content": {}}),
    ],
)
def test_a_refusal_repeats_little_of_what_is_long(field: str, value: Any) -> None:
    whole = {"type": "structural_tag", "format": value} if field == "structural_tag" else value
    with pytest.raises(GrammarError) as caught:
        translate(Constraint(field, whole))
    assert len(str(caught.value)) < 600
    assert all(len(diagnostic.message) < 300 for diagnostic in caught.value.diagnostics)
