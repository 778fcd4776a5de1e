"""POST /v1/grammars/validate."""

from typing import Any

import pytest
from django.test import Client

ALL = {"valid", "error", "code", "line", "column", "pointer", "warnings"}


def post(api: Client, **body: Any) -> Any:
    return api.post(
        "/v1/grammars/validate", {"model": "tiny", **body}, content_type="application/json"
    )


@pytest.mark.parametrize(
    ("body", "accepts", "matched"),
    [
        ({"ebnf": 'root ::= "A" | "B"', "text": "B"}, True, 1),
        ({"regex": "[a-z]+", "text": "ab1"}, False, 2),
        ({"json_schema": {"type": "null"}, "text": "null"}, True, 4),
        ({"json_schema": '{"type": "null"}', "text": " null"}, False, 0),
        (
            {
                "json_schema": {"items": {"type": "null"}, "type": "array"},
                "text": "[null, null]",
                "json_whitespace": "flexible",
            },
            True,
            12,
        ),
        ({"response_format": {"type": "json_object"}, "text": "[]"}, False, 0),
        ({"grammar": {"type": "lark", "value": 'start: "é"'}, "text": "é"}, True, 1),
        (
            {"structural_tag": {"format": {"type": "const_string", "value": "é…"}}, "text": "éx"},
            False,
            1,
        ),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    "triggers": ["<f>"],
                    "structures": [{"begin": "<f>", "schema": {"type": "null"}, "end": "é"}],
                },
                "text": "a<f>nullé",
            },
            True,
            9,
        ),
    ],
)
def test_a_usable_grammar_says_what_of_a_text_it_matches(
    api: Client, body: dict[str, Any], accepts: bool, matched: int
) -> None:
    response = post(api, **body)
    assert response.status_code == 200
    answer = response.json()
    assert answer.keys() == ALL | {"accepts", "matched_prefix"}
    assert (answer["valid"], answer["error"], answer["warnings"]) == (True, None, [])
    assert (answer["accepts"], answer["matched_prefix"]) == (accepts, matched)
    del body["text"]
    assert post(api, **body).json().keys() == ALL


def test_an_unusable_constraint_is_an_answer(api: Client) -> None:
    answer = post(api, ebnf='root ::= "a"\nroot ::= b', text="a").json()
    assert answer["valid"] is False
    assert (answer["line"], answer["column"], answer["code"]) == (2, 1, "invalid_grammar")
    assert "defined twice" in answer["error"]
    assert "accepts" not in answer


def test_nodes_of_a_structural_tag_are_named_with_their_pointer(api: Client) -> None:
    schema = {"properties": {"a": {"x-order": 1}}}
    node = {"type": "json_schema", "json_schema": schema}
    sequence = {"type": "sequence", "elements": [{"type": "any_text", "max_chars": 3}, node]}
    answer = post(api, structural_tag={"format": sequence}).json()
    assert (answer["valid"], answer["pointer"]) == (False, "/format/elements/0")
    answer = post(api, structural_tag={"format": node}).json()
    assert [each["pointer"] for each in answer["warnings"]] == [
        "/format/json_schema/properties/a/x-order"
    ]
    answer = post(api, response_format={"type": "structural_tag", "format": {"type": "x"}}).json()
    assert (answer["pointer"], answer["code"]) == ("/format/type", "unsupported_value")


def test_keywords_are_named_with_their_pointer(api: Client) -> None:
    schema = {"properties": {"a": {"extends": {}}}, "x-order": 1, "disallow": {}}
    answer = post(api, json_schema=schema).json()
    assert (answer["valid"], answer["pointer"]) == (False, "/disallow")
    assert {(each["keyword"], each["pointer"]) for each in answer["warnings"]} == {
        ("extends", "/properties/a/extends"),
        ("x-order", "/x-order"),
        ("disallow", "/disallow"),
    }
    answer = post(api, json_schema={"x-order": 1}).json()
    assert answer["valid"] is True
    assert [each["keyword"] for each in answer["warnings"]] == ["x-order"]


@pytest.mark.parametrize("field", ["json_schema", "structural_tag"])
def test_only_a_response_format_may_ask_for_text(api: Client, field: str) -> None:
    answer = post(api, **{field: {"type": "text"}}).json()
    assert (answer["valid"], answer["pointer"]) == (False, "/type")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "ebnf"),
        ({"response_format": {"type": "text"}}, "missing_required_parameter", "ebnf"),
        ({"ebnf": "x", "regex": "y"}, "conflicting_constraints", "regex"),
        ({"regex": "y", "json_whitespace": "compact"}, "invalid_value", "json_whitespace"),
        ({"regex": "y", "text": 1}, "invalid_type", "text"),
        ({"regex": "y", "text": "x" * 100_001}, "invalid_value", "text"),
        ({"regex": "y", "prompt": [1]}, "unknown_parameter", "prompt"),
        ({"grammar": {"type": "ebnf", "value": "x"}}, "invalid_value", "grammar.type"),
        ({"grammar": {"type": "lark", "value": {}}}, "invalid_type", "grammar.value"),
        ({"grammar": {"type": "llguidance", "value": "x"}}, "invalid_type", "grammar.value"),
        ({"model": "none", "regex": "y"}, "model_not_found", "model"),
        ({"model": None, "regex": "y"}, "missing_required_parameter", "model"),
    ],
)
def test_malformed_requests(api: Client, body: dict[str, Any], code: str, param: str) -> None:
    response = post(api, **body)
    assert response.status_code in (400, 404)
    failure = response.json()["error"]
    assert (failure["code"], failure["param"]) == (code, param)


def test_the_only_model_of_a_key_need_not_be_named(api: Client, owner: Any) -> None:
    owner.key.allowed_models = ["tiny"]
    owner.key.save()
    assert post(api, model=None, regex="a").json()["valid"] is True


def test_a_key_is_needed(client: Client, api: Client) -> None:
    assert post(Client(), regex="a").status_code == 401


def test_unknown_formats_are_errors_where_the_schema_is_strict(api: Client) -> None:
    schema = {"items": {"type": "string", "format": "colour"}}
    wanted = {"name": "x", "schema": schema}
    answer = post(api, response_format={"type": "json_schema", "json_schema": wanted}).json()
    assert (answer["valid"], answer["warnings"][0]["keyword"]) == (True, "format")
    wanted["strict"] = True
    answer = post(api, response_format={"type": "json_schema", "json_schema": wanted}).json()
    assert (answer["valid"], answer["pointer"]) == (False, "/items/format")
    assert "the format colour is unknown" in answer["error"]
