"""Calls in the models' own formats."""

from typing import Any

import pytest

from completions.grammars import structural_tag
from completions.grammars.exceptions import GrammarError
from tests.completions.grammars.structural_tag.nodes import tag, verdicts, wrapped

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "age"],
}
DSML = "\uff5cDSML\uff5c"
BOB = {
    "qwen_xml": "<parameter=name>Bob</parameter><parameter=age>1</parameter>",
    "minimax_xml": '<parameter name="name">Bob</parameter><parameter name="age">1</parameter>',
    "glm_xml": "<arg_key>name</arg_key><arg_value>Bob</arg_value>"
    "<arg_key>age</arg_key><arg_value>1</arg_value>",
    "deepseek_xml": f'<{DSML}parameter name="name" string="true">Bob</{DSML}parameter>'
    f'<{DSML}parameter name="age" string="false">1</{DSML}parameter>',
}


def parameters(schema: Any, style: str = "qwen_xml") -> dict[str, Any]:
    node = {"type": "json_schema", "json_schema": schema, "style": style}
    return wrapped(tag("<f>", node, "</f>"))


def call(**values: str) -> str:
    written = (f"<parameter={name}>{value}</parameter>" for name, value in values.items())
    return f"<f>{''.join(written)}</f>"


@pytest.mark.parametrize("style", BOB)
def test_styles(style: str) -> None:
    texts = [f"<f>{text}</f>" for text in BOB.values()]
    lines = BOB[style].replace("><", ">\n<").replace(">1<", ">\n1\n<")
    spaced = f"<f>\n{lines}\n</f>"
    assert verdicts(parameters(PERSON, style), texts) == [f"<f>{BOB[style]}</f>"]
    assert verdicts(parameters(PERSON, style), [spaced]) == [spaced]


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        (
            PERSON,
            [call(name="B<b", age="1"), call(name="", age="1", tags="[1,2]")],
            [
                call(age="1", name="B"),
                call(name="B"),
                call(name="B", age="x"),
                call(name="B", age="1", other="2"),
                call(name="B", age="1", tags="1"),
            ],
        ),
        (
            {"properties": {"a": {"enum": ["x", "y", 1]}}},
            ["<f></f>", call(a="x"), call(a="1")],
            [call(a='"x"'), call(a="z")],
        ),
        ({"properties": {"a": {"const": "x"}}, "required": ["a"]}, [call(a="x")], ["<f></f>"]),
        (
            {"properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
            [call(a="3"), call(a="null")],
            [call(a="x")],
        ),
        (
            {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
            [call(a="3"), call(a="null"), call(a="")],
            [],
        ),
        (
            {"properties": {"a": {"type": ["string", "null"], "maxLength": 2}}},
            [call(a="null"), call(a="xy")],
            [call(a="xyz")],
        ),
        (
            {"properties": {"a": {"type": "string", "pattern": "^[a-c]+$"}}},
            [call(a="abc")],
            [call(a="d"), call(a="")],
        ),
        (
            {"properties": {"a": {"type": "string", "pattern": "^a|b$"}}},
            [call(a="ax"), call(a="xb")],
            [call(a="xa")],
        ),
        (
            {"properties": {"a": {"type": "string", "pattern": "^(?!ab)(?=.{2})[a-c]+$"}}},
            [call(a="acb")],
            [call(a="abc"), call(a="c")],
        ),
        (
            {"properties": {"a": {"type": "string", "pattern": "b|c"}}},
            [call(a="abc")],
            [call(a="d")],
        ),
        (
            {"properties": {"a": {"type": "string", "minLength": 2, "maxLength": 3}}},
            [call(a="éé"), call(a="abc")],
            [call(a="d"), call(a="dddd")],
        ),
        ({}, ["<f></f>", call(a="abc"), call(a="1", b="x")], []),
        (
            {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}},
            [call(a="1", b="null"), call(b="null")],
            [call(a="1", a2="x"), call(a="null")],
        ),
        (
            {"properties": {"a": False, "b": {"anyOf": [False, {"type": "null"}]}}},
            ["<f></f>", call(b="null")],
            [call(a="1"), call(a="{}"), call(b="1")],
        ),
        (
            {"properties": {"a": False}, "additionalProperties": {"type": "null"}},
            [call(c="null")],
            [call(a="null"), call(c="1")],
        ),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/k"}},
                "$defs": {
                    "k": {
                        "properties": {"z": {"$ref": "#/$defs/n"}},
                        "required": ["z"],
                        "type": "object",
                    },
                    "n": {"type": "integer"},
                },
            },
            [call(a='{"z":1}')],
            [call(a='{"z":"x"}'), call(a="{}")],
        ),
        (
            {"$ref": "#/$defs/k", "$defs": {"k": {"properties": {"b": {"type": "boolean"}}}}},
            [call(b="true")],
            [call(b="x")],
        ),
    ],
)
def test_values(schema: Any, accepted: list[str], refused: list[str]) -> None:
    assert verdicts(parameters(schema), accepted + refused) == accepted


def test_the_older_name() -> None:
    node = {"type": "qwen_xml_parameter", "json_schema": PERSON}
    assert verdicts(wrapped(node), [BOB["qwen_xml"]]) == [BOB["qwen_xml"]]


@pytest.mark.parametrize(
    ("schema", "pointer", "reason"),
    [
        ({"type": "array"}, "", 'needs type object, not "array"'),
        (
            {"properties": {"a": {"type": "string", "format": "uuid"}}},
            "/properties/a/format",
            "format is not supported here in the style qwen_xml",
        ),
        (
            {"properties": {"a": {"type": "string", "pattern": "^(a"}}},
            "/properties/a/pattern",
            "is not closed",
        ),
        ({"anyOf": [{"type": "object"}]}, "/anyOf", "anyOf is not supported here"),
        (
            {"type": "object", "properties": {"a": {}}, "minProperties": 1},
            "/minProperties",
            "minProperties is not supported here in the style qwen_xml; leave it out",
        ),
        ({"required": ["a"]}, "", "a is required; declare it in properties"),
        (
            {"properties": {"a": False}, "required": ["a"]},
            "",
            "a is required; declare it in properties, with a value",
        ),
        (
            {"properties": {"a": {"uniqueItems": True}}},
            "/properties/a/uniqueItems",
            "uniqueItems cannot be enforced",
        ),
    ],
)
def test_what_a_style_cannot_say_is_refused(schema: Any, pointer: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        structural_tag.translate(parameters(schema))
    assert caught.value.pointer == f"/format/content/json_schema{pointer}"
