"""Names that two patterns, or a pattern and a declaration, share."""

import json
from typing import Any

import pytest

from completions.grammars import json_schema
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema.rewriting import overlaps
from completions.grammars.json_schema.rewriting.shapes import is_match
from completions.regular.nfa import PatternError
from tests.completions.grammars.byte_matcher import accepts

INTEGER: dict[str, Any] = {"type": "integer"}
NULL: dict[str, Any] = {"type": "null"}


def closed(pattern: str, rest: Any = False) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["ab"],
        "patternProperties": {pattern: INTEGER},
        "additionalProperties": rest,
    }


def test_patterns_of_two_schemas_are_met_name_by_name() -> None:
    met = overlaps.intersect({"^a": INTEGER}, NULL, {"b$": {"minimum": 1}}, True)
    by_name = {
        name: [node for pattern, node in met.items() if is_match(pattern, name)]
        for name in ("ab", "ax", "xb")
    }
    assert by_name == {
        "ab": [{"allOf": [INTEGER, {"minimum": 1}]}],
        "ax": [INTEGER],
        "xb": [{"allOf": [NULL, {"minimum": 1}]}],
    }


def test_patterns_that_share_no_names_stay() -> None:
    assert overlaps.intersect({"^a": INTEGER}, False, {"^b": NULL}, True) == {
        "^a": INTEGER,
        "^b": False,
    }
    assert overlaps.intersect({"^a": INTEGER}, True, {"a$": NULL}, True) == {
        "^a": INTEGER,
        "a$": NULL,
    }


def test_many_patterns_that_share_names_are_not_met() -> None:
    many: dict[str, Any] = {f"{letter}$": INTEGER for letter in "abcde"}
    with pytest.raises(PatternError, match="6 patterns share names"):
        overlaps.intersect({"^a": INTEGER}, False, many, True)


def test_only_patterns_that_share_names_count_together() -> None:
    mine = {"^a$": INTEGER, "^b$": INTEGER, "^c$": INTEGER}
    met = overlaps.intersect(mine, False, {"^[ax]$": NULL, "^y$": NULL, "^z$": NULL}, True)
    by_name = {
        name: [node for pattern, node in met.items() if is_match(pattern, name)] for name in "abxy"
    }
    assert by_name == {
        "a": [{"allOf": [INTEGER, NULL]}],
        "b": [INTEGER],
        "x": [False],
        "y": [False],
    }


def test_hundreds_of_patterns_are_not_compared() -> None:
    mine = {f"^a{i}.*x": INTEGER for i in range(200)}
    with pytest.raises(PatternError, match=r"200 and 200 patterns .* too many to compare"):
        overlaps.intersect(mine, False, {f"^b{i}.*y": NULL for i in range(200)}, False)


@pytest.mark.parametrize("rest", [False, NULL])
def test_branches_that_share_a_name_by_patterns_are_not_disjoint(rest: Any) -> None:
    """One object would be an instance of both branches."""
    schema = {"oneOf": [closed("^a", rest), closed("b$", rest)]}
    with pytest.raises(GrammarError, match="oneOf cannot be enforced here") as caught:
        json_schema.translate(schema)
    assert caught.value.pointer == "/oneOf"


def test_closed_schemas_meet_in_the_names_of_both() -> None:
    schema = {"allOf": [closed("^a"), closed("b$")], "not": {"required": ["acb"]}}
    grammar = json_schema.translate(schema).grammar
    assert accepts(grammar, '{"ab":1,"adb":2}')
    for wrong in ('{"ab":1,"ac":1}', '{"ab":1,"cb":1}', '{"ab":"x"}', '{"ab":1,"acb":1}'):
        assert not accepts(grammar, wrong), wrong


def test_a_declared_name_keeps_its_own_schema_beside_a_pattern() -> None:
    declared = {"properties": {"ab": INTEGER}, "additionalProperties": False}
    schema = {
        "type": "object",
        "not": {"required": ["z"]},
        "allOf": [{"patternProperties": {"^a": {"minimum": 1}}}, declared],
    }
    grammar = json_schema.translate(schema).grammar
    assert accepts(grammar, '{"ab":1}')
    for wrong in ('{"ab":0}', '{"ac":1}', '{"ab":"x"}'):
        assert not accepts(grammar, wrong), wrong


def test_allowed_names_beside_declared_ones() -> None:
    schema = {"type": "object", "properties": {"b": {}}, "propertyNames": {"not": {"const": "a"}}}
    for rest, free in ((False, False), (NULL, True)):
        grammar = json_schema.translate({**schema, "additionalProperties": rest}).grammar
        assert accepts(grammar, '{"b":1}')
        assert accepts(grammar, '{"c":null}') is free
        assert not accepts(grammar, '{"a":null}')


def test_a_required_name_is_the_wanted_undeclared_one() -> None:
    schema = {"type": "object", "required": ["b"], "not": {"additionalProperties": False}}
    grammar = json_schema.translate(schema).grammar
    for value in ({"b": 1}, {"b": 1, "c": 2}):
        assert accepts(grammar, json.dumps(value, separators=(",", ":")))
