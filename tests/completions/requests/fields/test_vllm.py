"""vLLM's names for constraints mean what they mean in vLLM."""

from types import SimpleNamespace
from typing import Any, Self

import pytest
from llguidance import LLMatcher

from completions.exceptions import APIError, FieldError
from completions.grammars import Constraint, tokens, translate
from completions.grammars.exceptions import GrammarError
from completions.requests.fields.constraint import (
    ConstraintFields,
    list_without_effect,
    parse_constraint,
)

MODEL: Any = SimpleNamespace(entry=SimpleNamespace(json_whitespace="compact"))
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "ok"}}


class Body(ConstraintFields):
    def check(self, values: Self) -> Self:
        return values


def read(body: dict[str, Any]) -> Constraint | None:
    return parse_constraint(Body().validate(body), MODEL)


def accepts(constraint: Constraint | None, text: str) -> bool:
    """Whether the text is in the language of the constraint. Tokens are bytes here."""
    assert constraint is not None
    grammar = translate(constraint).grammar
    matcher = LLMatcher(tokens.load(None), grammar, log_level=0)
    ids = list(text.encode())
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


CASES: list[tuple[str, Any, str, str]] = [
    ("json", {"enum": [1, 22]}, "22", "2"),
    ("json", '{"enum": [1, 22]}', "1", "3"),
    ("json", {}, "[null]", "["),
    ("regex", "[0-9]{3}", "123", "12"),
    ("choice", ["yes", 'a "b"\n\\', "é"], 'a "b"\n\\', "yesno"),
    ("choice", ["a", "a", ""], "", "aa"),
    ("grammar", 'root ::= "A" | "B"  # a: b', "B", "C"),
    ("grammar", 'start: "A" | "B"', "B", "C"),
    ("grammar", '?start: pair\npair: /[a-z]/ "::"  // root ::= "x"', "a::", "a"),
    ("grammar", '?value: item | "x"\nitem: "[" value "]"', "[[x]]", "[x"),
    ("grammar", "root: 'it\\'s ' /x'/ \"'\" '\"'", "it's x''\"", "it"),
]


@pytest.mark.parametrize(("kind", "value", "good", "bad"), CASES)
@pytest.mark.parametrize("older", [False, True])
def test_the_output_matches(kind: str, value: Any, good: str, bad: str, older: bool) -> None:
    if older:
        found, place = read({f"guided_{kind}": value}), f"guided_{kind}"
    else:
        found, place = read({"structured_outputs": {kind: value}}), f"structured_outputs.{kind}"
    assert found is not None
    assert found.error_path == place
    assert accepts(found, good)
    assert not accepts(found, bad)


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ({"json_object": True}, '{"a":[1]}'),
        ({"structural_tag": TAG}, "ok"),
        ({"json": {"type": "boolean"}, "regex": None, "grammar": "", "json_object": False}, "true"),
    ],
)
def test_other_keys_of_structured_outputs(value: dict[str, Any], good: str) -> None:
    assert accepts(read({"structured_outputs": value}), good)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"structured_outputs": {}}, "missing_required_parameter", "structured_outputs"),
        ({"structured_outputs": {"xml": "a"}}, "unknown_parameter", "structured_outputs.xml"),
        ({"structured_outputs": {"choice": []}}, "empty_array", "structured_outputs.choice"),
        ({"structured_outputs": {"choice": "a"}}, "invalid_type", "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [1]}}, "invalid_type", "structured_outputs.choice[0]"),
        (
            {"structured_outputs": {"json": {}, "regex": "a"}},
            "conflicting_constraints",
            "structured_outputs.regex",
        ),
        (
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
            "unsupported_value",
            "structured_outputs.disable_additional_properties",
        ),
        ({"guided_choice": []}, "empty_array", "guided_choice"),
        ({"guided_grammar": {}}, "invalid_type", "guided_grammar"),
        ({"guided_json": True}, "invalid_type", "guided_json"),
    ],
)
def test_what_is_refused(body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(APIError) as caught:
        Body().validate(body)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        ({"regex": "a", "guided_regex": "a"}, "conflicting_constraints", "guided_regex"),
        ({"guided_json": {}, "guided_choice": ["a"]}, "conflicting_constraints", "guided_choice"),
        (
            {"guided_choice": ["a"], "json_whitespace": "compact"},
            "invalid_value",
            "json_whitespace",
        ),
        (
            {
                "structured_outputs": {"json": {}, "disable_any_whitespace": True},
                "json_whitespace": "flexible",
            },
            "invalid_value",
            "json_whitespace",
        ),
    ],
)
def test_two_fields_that_contradict(body: dict[str, Any], code: str, path: str) -> None:
    with pytest.raises(FieldError) as caught:
        read(body)
    assert (caught.value.code, caught.value.path) == (code, path)


def test_a_fault_is_named_by_vllms_field() -> None:
    for body, field in (
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ):
        found = read(body)
        assert found is not None
        with pytest.raises(GrammarError) as caught:
            translate(found)
        assert caught.value.field == field


def test_options_without_effect_are_named() -> None:
    for outputs, names in (
        ({"json": {}, "whitespace_pattern": " "}, ["structured_outputs.whitespace_pattern"]),
        (
            {"regex": "a", "disable_any_whitespace": True},
            ["structured_outputs.disable_any_whitespace"],
        ),
        ({"json": {}, "disable_any_whitespace": True}, []),
    ):
        assert list_without_effect(Body().validate({"structured_outputs": outputs})) == names


def test_whitespace_can_be_disabled_where_the_model_allows_it() -> None:
    flexible: Any = SimpleNamespace(entry=SimpleNamespace(json_whitespace="flexible"))
    for disable, whitespace in ((True, "compact"), (False, "flexible")):
        outputs = {"json": {}, "disable_any_whitespace": disable}
        found = parse_constraint(Body().validate({"structured_outputs": outputs}), flexible)
        assert found is not None
        assert found.whitespace == whitespace
