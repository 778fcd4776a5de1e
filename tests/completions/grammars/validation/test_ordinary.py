"""What a thread of the web process may judge."""

import json
from typing import Any

import pytest

from completions.chat.grammar import ToolCalls, make_answer_constraint
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import InputGrammar, Tool, ToolChoice
from completions.grammars import Constraint, ValidationRequest
from completions.grammars.validation.ordinary import is_ordinary
from completions.grammars.validation.validator import canonicalize
from tests.completions.grammars.hostile import repeated
from tests.completions.grammars.json_schema.test_schema import chain

CALLS = ToolCalls(TOOL_FORMATS["hermes"], [Tool("f")], ToolChoice())
AB = {"type": "const_string", "value": "ab"}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("regex", "[a-z]{2,300}", True),
        ("regex", "[a-z]{2,501}", False),
        ("regex", "x{99999999999999999999}", False),
        ("regex", "(" * 201, False),
        ("ebnf", "root ::= " + '"a" ' * 5000, False),
        ("json_schema", {"type": "object"}, True),
        ("json_schema", chain(60), False),
        ("json_schema", {"multipleOf": 7}, True),
        ("json_schema", r'{"multiple\u004ff": 9}', False),
        ("json_schema", {"description": "\u00e9"}, True),
        ("grammar", {"type": "lark", "value": 'start: %json {"multipleOf": 9}'}, False),
        ("grammar", {"type": "lark", "value": 'start: "a"'}, False),
        ("grammar", {"type": "regex", "value": "a+"}, True),
        ("ebnf", r'root ::= "\u00e9"', True),
        ("json_schema", {"patternProperties": {f"^k{i}": {} for i in range(9)}}, True),
        ("json_schema", {"patternProperties": {f"^k{i}": {} for i in range(200)}}, False),
        ("json_schema", {"anyOf": [{"multipleOf": 9901}, {"multipleOf": 9902}]}, False),
        ("regex", "((a{9}){9}){9}", False),
        ("regex", "a{9}{9}{9}", False),
        ("regex", "(?x) ((a{9}) {9}) {9}", False),
        ("regex", "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}", True),
        ("json_schema", {"pattern": "((a{9}){9}){9}"}, False),
        ("json_schema", {"enum": [], "anyOf": [{"pattern": r"\d{4}-\d{2}-\d{2}"}] * 9}, True),
        ("ebnf", 'root ::= a{9}\na ::= b{9}\nb ::= "a"{9}', False),
        ("regex", "((a{009}){0009}){9}", False),
        ("regex", "a{0000000000501}", False),
        ("regex", "a{0000000000500}", True),
        ("regex", "((a{\n9}){9\n,9}){,\t9}", False),
        ("regex", "(?x) ((a{\u20289}){9}){9}", False),
        ("ebnf", 'root ::= (("a"{\n9}){\t9}){9}', False),
        ("ebnf", 'root ::= (("a"{9 # c\n,9}){1 # }\n,9}){9}', False),
        ("ebnf", r'root ::= "{" ws "}" | "{\"id\": 1000}" | [{] "x"', True),
        ("json_schema", {"pattern": "((a{009}){9}){9}"}, False),
        ("json_schema", {"properties": {"a": {"maxLength": 1000}}}, True),
        ("json_schema", '{\n  "properties": {\n"a": {\t"maxLength": 1000}}}', True),
        ("structural_tag", {"format": {"type": "regex", "pattern": "((a{009}){9}){9}"}}, False),
        ("structural_tag", '{"a": {"min":\n30, "b": {"max" :\n30}}}', False),
        ("structural_tag", {"format": repeated(AB, 2)}, False),
        ("structural_tag", json.dumps({"format": repeated(AB, 2)}), False),
        ("structural_tag", {"format": repeated(AB, 0)}, True),
        ("regex", f"({'a' * 1500}){{500}}", False),
        ("ebnf", f'root ::= ("{"a" * 1500}"){{500}}', False),
        ("json_schema", {"pattern": f"^({'a' * 1500}){{500}}$"}, False),
        ("json_schema", {"pattern": "^([a-z]+-){1,20}$", "description": "long " * 3000}, True),
        ("json_schema", {"minItems": 400, "items": {"const": "a" * 1500}}, False),
        ("json_schema", '{"minItems":\n3\n,"items": {"minItems" : 2\n}}', True),
        ("json_schema", {"minLength": 10**6}, True),
        ("json_schema", {"allOf": [{"not": {"const": i}} for i in range(20)]}, True),
        ("json_schema", {"allOf": [{"not": {"pattern": "a.b"}} for i in range(21)]}, False),
        ("json_schema", {"allOf": [{"enum": list(range(50))}, {"enum": list(range(50))}]}, True),
        ("json_schema", {"allOf": [{"enum": list(range(60))}, {"enum": list(range(60))}]}, False),
        ("json_schema", {"items": {"enum": list(range(900))}, "enum": list(range(60))}, True),
        ("json_schema", json.dumps({"enum": list(range(60)), "anyOf": [{"const": 1}] * 60}), False),
        ("json_schema", json.dumps({"allOf": [{"oneOf": [{}]}] * 21}), False),
        ("json_schema", {"allOf": [{"pattern": f"a{i}"} for i in range(9)]}, True),
        ("json_schema", {"allOf": [{"pattern": f"a{i}"} for i in range(20)]}, False),
        ("json_schema", {"properties": {f"{i}": {"pattern": f"a{i}"} for i in range(20)}}, True),
        ("json_schema", {"allOf": [{"pattern": f"^({'a' * n})*$"} for n in (17, 19, 23)]}, True),
        ("json_schema", {"allOf": [{"pattern": f"^({'a' * n})*$"} for n in (397, 401)]}, False),
        ("json_schema", json.dumps({"allOf": [{"pattern": f"{i}"} for i in range(20)]}), False),
        ("json_schema", {"minLength": 10**6, "pattern": "^a*$"}, False),
        ("json_schema", '{"pattern": "^a*$", "minLength": 1e6}', False),
        ("json_schema", {"minLength": 500, "pattern": "^a*$"}, True),
    ],
)
def test_what_is_ordinary(field: str, value: Any, expected: bool) -> None:
    request = ValidationRequest(Constraint(field, value))
    assert is_ordinary(request, canonicalize(request)) is expected


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("ebnf", 'root ::= "a"', True),
        ("ebnf", 'root ::= a{9}\na ::= b{9}\nb ::= "a"{9}', False),
        ("grammar", {"type": "lark", "value": 'start: /a+/ "a"'}, False),
        ("json_schema", {"allOf": [{"pattern": f"a{i}"} for i in range(20)]}, False),
        ("json_schema", json.dumps({"allOf": [{"pattern": f"a{i}"} for i in range(20)]}), False),
    ],
)
def test_a_constraint_beside_tools_is_judged_as_it_is_alone(
    field: str, value: Any, expected: bool
) -> None:
    constraint = make_answer_constraint(None, CALLS, Constraint(field, value))
    assert constraint is not None
    request = ValidationRequest(constraint)
    assert is_ordinary(request, canonicalize(request)) is expected


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (None, True),
        (InputGrammar("lark", 'start: /a+/ "a"'), False),
        (InputGrammar("regex", "a"), False),
    ],
)
def test_only_a_process_judges_grammars_of_inputs(
    grammar: InputGrammar | None, expected: bool
) -> None:
    calls = ToolCalls(TOOL_FORMATS["hermes"], [Tool.make_custom("f", None, grammar)], ToolChoice())
    constraint = make_answer_constraint(None, calls, None)
    assert constraint is not None
    request = ValidationRequest(constraint)
    assert is_ordinary(request, canonicalize(request)) is expected
