"""Rows of the constraints."""

import json
import re
from collections.abc import Callable
from typing import Any

from tests.acceptance.contract.answers import Answer
from tests.acceptance.contract.rows import (
    BAD,
    BOOLEAN,
    TEXT,
    A,
    Refused,
    Row,
    ignored,
    row,
    wrong,
)

GRAMMAR = "invalid_grammar"


ROOM = {"max_tokens": 40, "ignore_eos": False}


SCHEMA = {"enum": [1, 22]}


OBJECT = {
    "type": "object",
    "properties": {"n": {"enum": [1]}},
    "required": ["n"],
    "additionalProperties": False,
}


TREE = {"type": "structural_tag", "format": {"type": "const_string", "value": "ok"}}


def texts(fits: Callable[[str], Any]) -> Callable[[Answer, Answer | None], None]:
    """Check that every choice is complete, and that `fits` accepts its text."""

    def check(answer: Answer, _: Answer | None) -> None:
        assert set(answer.each("finish_reason")) == {"stop"}
        assert set(answer.each("matched_stop")) == {None}
        for text in answer.texts:
            assert fits(text), text

    return check


def constraint(name: str, given: Any, fits: Callable[[str], Any], refused: Any = ()) -> Row:
    return row(name, given, texts(fits), refused, ROOM)


def is_closed(answer: Answer, _: Answer | None) -> None:
    """The model would write `a` for ever."""
    assert set(answer.each("finish_reason")) == {"length"}
    for text, info in zip(answer.texts, answer.each("meta_info"), strict=True):
        assert re.fullmatch("a{3,}b", text)
        assert info["constraint"]["closed"] is True
        assert 3 <= info["constraint"]["closed_at"] < info["completion_tokens"]


def is_a_number(text: str) -> bool:
    return json.loads(text) in (1, 22)


def is_the_object(text: str) -> bool:
    return json.loads(text) == {"n": 1}


def begins_an_object(answer: Answer, _: Answer | None) -> None:
    """Check the beginning only: an object of any content may be longer than the answer."""
    assert all(re.match(r'\{["}]', text) for text in answer.texts)


AB = re.compile("[AB]").fullmatch


BOTH = [Refused({"regex": "a", "ebnf": 'root ::= "a"'}, "conflicting_constraints", "regex")]


VLLM = "structured_outputs"


ROWS: list[Row] = [
    constraint(
        "ebnf",
        'root ::= "A" | "B"',
        AB,
        [*wrong("ebnf", *TEXT), *wrong("ebnf", "root ::= (", 'x ::= "a"', code=GRAMMAR), *BOTH],
    ),
    constraint(
        "regex",
        "[0-9]{3}",
        re.compile("[0-9]{3}").fullmatch,
        [*wrong("regex", *TEXT), *wrong("regex", "(", code=GRAMMAR), *BOTH],
    ),
    constraint(
        "json_schema",
        SCHEMA,
        is_a_number,
        [
            *wrong("json_schema", [], True, 1),
            *wrong("json_schema", "{", code=GRAMMAR),
            Refused({"json_schema": {"type": "x"}}, GRAMMAR, "json_schema"),
            Refused({"json_schema": {"type": "text"}}, GRAMMAR, "json_schema"),
        ],
    ),
    constraint("json_schema", json.dumps(OBJECT), is_the_object),
    constraint(
        "structural_tag",
        TREE,
        re.compile("ok").fullmatch,
        [
            *wrong("structural_tag", [], 1),
            *wrong("structural_tag", "{", code=GRAMMAR),
            Refused(
                {"structural_tag": {"type": "structural_tag", "format": {"type": "nobody"}}},
                "unsupported_value",
                "structural_tag",
            ),
        ],
    ),
    constraint("structural_tag", json.dumps(TREE), re.compile("ok").fullmatch),
    constraint(
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        is_a_number,
        [
            *wrong("response_format", "text", []),
            *wrong(
                "response_format", {}, code="missing_required_parameter", at="response_format.type"
            ),
            *wrong("response_format", {"type": "xml"}, code=BAD, at="response_format.type"),
            *wrong(
                "response_format",
                {"type": "json_schema"},
                code="missing_required_parameter",
                at="response_format.json_schema",
            ),
            *wrong(
                "response_format",
                {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
                code=BAD,
                at="response_format.json_schema.name",
            ),
            *wrong(
                "response_format",
                {"type": "text", "x": 1},
                code="unknown_parameter",
                at="response_format.x",
            ),
            Refused(
                {"response_format": {"type": "json_object"}, "regex": "a"},
                "conflicting_constraints",
                "response_format",
            ),
        ],
    ),
    constraint("response_format", TREE, re.compile("ok").fullmatch),
    row("response_format", {"type": "text"}, lambda answer, _: None),
    constraint(
        "grammar",
        {"type": "regex", "value": "[AB]"},
        AB,
        [
            *wrong("grammar", "x", []),
            *wrong("grammar", {"type": "xml", "value": ""}, code=BAD, at="grammar.type"),
            *wrong("grammar", {"type": "regex", "value": {}}, at="grammar.value"),
            *wrong("grammar", {"type": "regex", "value": "("}, code=GRAMMAR, at="grammar"),
        ],
    ),
    constraint("grammar", {"type": "lark", "value": 'start: "A" | "B"'}, AB),
    constraint("grammar", {"type": "json_schema", "value": SCHEMA}, is_a_number),
    constraint(
        "grammar",
        {"type": "llguidance", "value": {"grammars": [{"lark_grammar": 'start: "A" | "B"'}]}},
        AB,
    ),
    row(
        "close",
        True,
        is_closed,
        [
            *wrong("close", *BOOLEAN),
            Refused({"close": True, "regex": "a{9}", "max_tokens": 3}, BAD, "max_tokens"),
        ],
        {"regex": "a{3,}b", "max_tokens": 12, "ignore_eos": False, "logit_bias": {str(A): 100}},
    ),
    row("close", True, ignored("close")),
    row(
        "json_whitespace",
        "flexible",
        texts(is_the_object),
        [*wrong("json_whitespace", 1, []), *wrong("json_whitespace", "wide", "compact", code=BAD)],
        {**ROOM, "json_schema": OBJECT, "max_tokens": 200},
    ),
    constraint(
        VLLM,
        {"json": SCHEMA},
        is_a_number,
        [
            *wrong(VLLM, 1, "x", []),
            *wrong(VLLM, {}, code="missing_required_parameter"),
            *wrong(VLLM, {"xml": ""}, code="unknown_parameter", at=f"{VLLM}.xml"),
            *wrong(VLLM, {"regex": "("}, code=GRAMMAR, at=f"{VLLM}.regex"),
            *wrong(
                VLLM,
                {"regex": "a", "choice": ["a"]},
                code="conflicting_constraints",
                at=f"{VLLM}.choice",
            ),
            Refused({VLLM: {"regex": "a"}, "regex": "a"}, "conflicting_constraints", VLLM),
        ],
    ),
    row(VLLM, {"json_object": True, "disable_any_whitespace": True}, begins_an_object, beside=ROOM),
    constraint(VLLM, {"structural_tag": json.dumps(TREE)}, re.compile("ok").fullmatch),
    constraint(VLLM, {"regex": "[AB]"}, AB),
    constraint(VLLM, {"choice": ["A", "B"]}, AB),
    constraint(VLLM, {"grammar": 'root ::= "A" | "B"'}, AB),
    constraint(
        "guided_json",
        OBJECT,
        is_the_object,
        [*wrong("guided_json", [], 1), *wrong("guided_json", "{", code=GRAMMAR)],
    ),
    constraint(
        "guided_regex",
        "[AB]",
        AB,
        [*wrong("guided_regex", *TEXT), *wrong("guided_regex", "(", code=GRAMMAR)],
    ),
    constraint(
        "guided_choice",
        ["A", "B"],
        AB,
        [*wrong("guided_choice", "A", {}), *wrong("guided_choice", [], code="empty_array")],
    ),
    constraint(
        "guided_grammar",
        "?root: letter\nletter: 'A' | 'B'",
        AB,
        [
            *wrong("guided_grammar", *TEXT),
            *wrong("guided_grammar", "root ::= (", "root: (", code=GRAMMAR),
        ],
    ),
]
