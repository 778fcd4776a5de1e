"""Patterns of schemas as clients write them, in a grammar."""

from typing import Any

import pytest

from completions.grammars import json_schema
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema.pattern_lowering import lower
from tests.completions.grammars.byte_matcher import accepts

DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
DECIMAL_WITH_DIGITS = r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,10}|(?=[\d.]{1,14}0*$)\d{0,10}\.\d{0,3}0*$)$"
"""What pydantic writes for a Decimal, the second with max_digits and decimal_places."""
EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]"
    r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)
HOSTNAME = (
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"
)
DURATION = (
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
    r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
)
"""What zod writes for its formats."""
FILE = r'^(?!.*\.\.)(?!.*/$)[^\\:*?"<>|]{1,255}$'
LABEL = "a" * 63


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (DECIMAL, ["1", "-0.5", "+12."], ["", "-", ".", "1e5", "٣"]),
        (DECIMAL_WITH_DIGITS, ["1234567890", "0012.345", "-.5"], ["12345678901", "1.2345", "+."]),
        (EMAIL, ["a.b@c.de", "o'x@a-b.co"], [".a@b.cd", "a..b@c.de", "a.@b.cd", 'a"@b.cd']),
        (HOSTNAME, ["a.b", ".".join([LABEL] * 3), "a."], ["-a", ".".join([LABEL] * 5), "a..b"]),
        (DURATION, ["P1Y2M", "PT2H3.5S", "P3W"], ["P", "PT", "P1YT", "P1Y2W"]),
        (FILE, ["a/b.txt", "a", "x" * 255], ["a/", "a..b", 'a"b', "a\\b", "x" * 256, ""]),
        ("^(?=.*[A-Z])(?=.*[0-9]).{3,}$", ["aB1", "1xB"], ["ab1", "AB", "A1"]),
        ("^(?:(?=a)ab|(?!b)[a-c]c)$", ["ab", "ac", "cc"], ["bc", "bb"]),
        (r"^(?!(?:CON|PRN)(?:\.|$))[A-Z.]{1,9}$", ["CONX", "A.CON"], ["CON", "CON.A", "PRN"]),
        (r"\bcat\b", ["a cat", "cat"], ["cats", "concat"]),
    ],
)
def test_look_around_is_enforced(pattern: str, good: list[str], bad: list[str]) -> None:
    schemas: list[tuple[dict[str, Any], str]] = [
        ({"type": "string", "pattern": pattern}, "%s"),
        ({"pattern": pattern}, "%s"),
        (
            {
                "type": "object",
                "properties": {"a": {"type": ["string", "null"], "pattern": pattern}},
                "required": ["a"],
                "additionalProperties": False,
            },
            '{"a":%s}',
        ),
    ]
    for schema, frame in schemas:
        grammar = json_schema.translate(schema).grammar
        for text in (*good, *bad):
            written = json_schema.dump(text)
            assert accepts(grammar, frame % written) is (text in good), text
    assert accepts(json_schema.translate({"pattern": pattern}).grammar, "[1]")


def test_look_around_that_fits_no_automaton_stays_beside_the_rest() -> None:
    assert len(lower(FILE)) == 3
    assert len(lower(HOSTNAME)) == 2


def test_a_reference_through_a_pattern_that_changes() -> None:
    schema = {
        "type": "object",
        "patternProperties": {"a|b": {"type": "null"}, "^x$": {"minimum": 3, "type": "integer"}},
        "properties": {"c": {"$ref": "#/patternProperties/a%7Cb"}},
        "additionalProperties": False,
    }
    grammar = json_schema.translate(schema).grammar
    assert accepts(grammar, '{"c":null,"xa":null,"x":3}')
    assert not accepts(grammar, '{"c":1}')


def test_a_fault_inside_a_pattern_that_changes_has_the_clients_pointer() -> None:
    inside = {
        "properties": {
            "y": {"allOf": [{"pattern": f".*{c}.{{8}}x", "type": "string"} for c in "abcdefgh"]}
        }
    }
    schema = {"type": "object", "patternProperties": {"^a/b": inside, "^c": {}}}
    with pytest.raises(GrammarError, match="too complex") as caught:
        json_schema.translate(schema)
    assert caught.value.pointer == "/patternProperties/^a~1b/properties/y"


def test_names_with_and_without_a_pattern_are_told_apart() -> None:
    schema = {
        "type": "object",
        "patternProperties": {'^[^"]*$': {"const": 1}},
        "additionalProperties": {"const": 2},
    }
    grammar = json_schema.translate(schema).grammar
    assert accepts(grammar, '{"a":1}')
    assert accepts(grammar, r'{"\"":2}')
    assert not accepts(grammar, r'{"\"":1}')
    assert not accepts(grammar, r'{"\u0001":2}')
    with pytest.raises(GrammarError, match="beside values that hold control characters") as caught:
        json_schema.translate({**schema, "properties": {"a": {"const": "\x01"}}})
    assert caught.value.pointer == "/patternProperties"


def test_two_patterns_of_one_meaning() -> None:
    schema = {"type": "object", "patternProperties": {"a": {"minimum": 1}, "(?:a)": {"maximum": 2}}}
    grammar = json_schema.translate({**schema, "additionalProperties": False}).grammar
    assert accepts(grammar, '{"a":1}')
    assert not accepts(grammar, '{"a":3}')
