"""Every fault of a tree has a pointer."""

from typing import Any

import pytest

from completions.grammars import structural_tag
from completions.grammars.exceptions import GrammarError, UnknownNodeError
from tests.completions.grammars.structural_tag.nodes import (
    ANY_JSON,
    const,
    free,
    sequence,
    tag,
    triggered,
    wrapped,
)

CALL = tag("<f=a>", ANY_JSON, "</f>")


def refusal(value: Any) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        structural_tag.translate(value)
    return caught.value


@pytest.mark.parametrize(
    ("node", "pointer", "reason"),
    [
        ({}, "", "needs the field type"),
        ({"type": 1}, "/type", "must be a string, not 1"),
        ({"type": "const_string"}, "", "needs the field value"),
        ({"type": "const_string", "value": "a", "x": 1}, "/x", "const_string has no field x"),
        ({"type": "sequence", "elements": []}, "/elements", "at least one"),
        ({"type": "sequence", "elements": {}}, "/elements", "must be an array"),
        (sequence(const("a"), 3), "/elements/1", "must be an object, not 3"),
        (free(""), "/excludes/0", "not empty"),
        (free(max_chars=-1), "/max_chars", "at least 0, not -1"),
        (free(max_chars=True), "/max_chars", "an integer"),
        (free(max_tokens=5), "/max_tokens", "use max_chars, or any_tokens"),
        ({"type": "json_schema", "json_schema": "{}"}, "/json_schema", "an object or a boolean"),
        ({**ANY_JSON, "any_order": True}, "/any_order", "keep their order"),
        ({**ANY_JSON, "excludes": ["a"]}, "/excludes", "give the strings of the schema a pattern"),
        ({"type": "repeat", "content": const("a"), "min": 2, "max": 1}, "/max", "1, less than min"),
        ({"type": "repeat", "content": const("a"), "min": 0, "max": 200_000}, "", "more than"),
        (tag(1, const("a"), "b"), "/begin", "a string or a node of type token, not 1"),
        (tag(["a"], const("a"), "b"), "/begin", "a string or a node of type token"),
        (tag("a", const("a"), []), "/end", "an array of strings"),
        (tag("a", const("a"), {"type": "any_tokens"}), "/end", "a node of type token"),
        (triggered(["<g"], CALL), "/tags/0/begin", "exactly one of the triggers, not 0"),
        (triggered(["<f", "<f="], CALL), "/tags/0/begin", "not 2"),
        (triggered([], CALL), "", "1 to 128 triggers"),
        (triggered([f"<{i}" for i in range(129)], CALL), "", "1 to 128 triggers"),
        ({"type": "dispatch", "rules": []}, "/rules", "1 to 128 rules, not 0"),
        (triggered(["<f="], const("a")), "/tags/0/type", "must be of type tag"),
        (
            triggered(["<f="], CALL, excludes=["<"]),
            "/excludes/0",
            'begins with "<", so it could never be written; exclude',
        ),
        ({"type": "dispatch", "rules": [["a"]]}, "/rules/0", '[pattern, format], not ["a"]'),
        ({"type": "dispatch", "rules": [["", const("a")]]}, "/rules/0/0", "not empty"),
        ({"type": "token", "token": True}, "/token", "a token's id or text"),
        ({"type": "token", "token": 1}, "", "send `model` beside the constraint"),
        ({"type": "regex", "pattern": "a("}, "/pattern", "this ( is not closed"),
        ({"type": "grammar", "grammar": "root ::= b"}, "/grammar", "not defined"),
        (
            {"type": "json_schema", "json_schema": {"items": {"extends": {}}}},
            "/json_schema/items/extends",
            "the keyword extends is not supported",
        ),
        (sequence(free(), free("a"), ANY_JSON), "/elements/1", "the end of this text"),
        (
            sequence(free(), {"type": "regex", "pattern": "a|b"}, ANY_JSON),
            "/elements/1",
            "end of this text is ambiguous",
        ),
    ],
)
def test_faults(node: Any, pointer: str, reason: str) -> None:
    error = refusal(wrapped(node))
    assert reason in error.message
    assert (error.pointer, error.code) == (f"/format{pointer}", "invalid_grammar")


@pytest.mark.parametrize(
    ("node", "pointer", "reason"),
    [
        ({"type": "tagged"}, "/type", "unknown node type tagged; use one of: any_text, "),
        ({**ANY_JSON, "style": "kimi_k3_xml"}, "/style", "style kimi_k3_xml is not supported"),
    ],
)
def test_unknown_kinds_have_a_code_of_their_own(node: Any, pointer: str, reason: str) -> None:
    error = refusal(wrapped(sequence(const("a"), node)))
    assert isinstance(error, UnknownNodeError)
    assert (error.pointer, error.code) == (f"/format/elements/1{pointer}", "unsupported_value")
    assert reason in error.message


@pytest.mark.parametrize(
    ("value", "pointer", "reason"),
    [
        ({}, "", "needs `format`, or `structures` and `triggers`"),
        ({"type": "text", "format": const("a")}, "/type", "must be structural_tag"),
        ({"format": const("a"), "triggers": []}, "/triggers", "has no field triggers"),
        ({"structures": [{"begin": "<a>", "end": "."}]}, "", "needs the field triggers"),
        (
            {"structures": [{"begin": "a", "end": "b", "schema": 1}], "triggers": ["a"]},
            "/structures/0/schema",
            "must be an object, or text",
        ),
        (
            {"structures": [{"begin": "a", "end": "b", "schema": "{"}], "triggers": ["a"]},
            "/structures/0/schema",
            "does not hold JSON",
        ),
        (
            {
                "structures": [{"begin": "a", "end": "b", "schema": {"extends": {}}}],
                "triggers": ["a"],
            },
            "/structures/0/schema/extends",
            "the keyword extends",
        ),
        (
            {"structures": [{"begin": "a", "end": "b"}], "triggers": ["b"]},
            "/structures/0/begin",
            "exactly one of the triggers",
        ),
    ],
)
def test_faults_around_the_tree(value: Any, pointer: str, reason: str) -> None:
    error = refusal(value)
    assert reason in error.message
    assert error.pointer == pointer


def test_bad_text_has_a_place() -> None:
    error = refusal('{\n "format": }')
    assert (error.line, error.column) == (2, 12)
    deep = "[" * 70 + "]" * 70
    assert "nested deeper" in refusal(f'{{"format": {deep}}}').message
