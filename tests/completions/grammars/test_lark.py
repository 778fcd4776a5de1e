from typing import Any

import pytest

from completions.grammars import Constraint, translate
from completions.grammars.exceptions import GrammarError
from completions.grammars.limits import FLEXIBLE
from tests.completions.grammars.byte_matcher import accepts

NULLS = {"type": "array", "items": {"type": "null"}}


def wrapped(kind: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "value": value}


def translated(lark: str) -> str:
    return translate(Constraint("grammar", wrapped("lark", lark))).grammar


@pytest.mark.parametrize(
    ("value", "good", "bad"),
    [
        (wrapped("regex", "a+"), "aa", "b"),
        (wrapped("json_schema", NULLS), "[null,null]", "[null, null]"),
        (wrapped("json_schema", '{"type":"null"}'), "null", "1"),
        (wrapped("lark", 'start: "a" b\nb: /[0-9]/'), "a1", "a"),
        (wrapped("lark", 'start: %json {"type": "null"}'), "null", "1"),
        (wrapped("llguidance", {"grammars": [{"json_schema": NULLS}]}), "[null]", "[ null]"),
        (
            wrapped(
                "llguidance",
                {
                    "grammars": [
                        {"lark_grammar": 'start: "<" @inner ">"'},
                        {"name": "inner", "json_schema": {"type": "boolean"}},
                    ]
                },
            ),
            "<true>",
            "<1>",
        ),
    ],
)
def test_a_grammar_accepts_its_good_text_and_not_the_bad_one(
    value: dict[str, Any], good: str, bad: str
) -> None:
    grammar = translate(Constraint("grammar", value)).grammar
    assert accepts(grammar, good)
    assert not accepts(grammar, bad)


def test_flexible_whitespace_is_allowed_up_to_its_limit() -> None:
    for value in (
        wrapped("json_schema", NULLS),
        wrapped("llguidance", {"grammars": [{"json_schema": NULLS}]}),
    ):
        grammar = translate(Constraint("grammar", value, FLEXIBLE)).grammar
        assert accepts(grammar, "[null,\n  null]")
        assert not accepts(grammar, "[null," + " " * 33 + "null]")


@pytest.mark.parametrize(
    ("value", "reason", "place"),
    [
        (wrapped("regex", "("), r"this \( is not closed", (1, 1, None)),
        (wrapped("lark", 'start: "a" b'), "b is not defined; define it as b: ", (1, 8, None)),
        (wrapped("lark", '{"a": 1}'), "{ cannot begin a definition", (1, 1, None)),
        (wrapped("lark", "start: <nope>"), "no special token <nope>", (1, 8, None)),
        (wrapped("lark", "start: " + "(" * 300), "nested deeper", (None, None, None)),
        (wrapped("lark", 'start: ("a"{1000}){1000}'), "multiply", (None, None, None)),
        (
            wrapped("lark", "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(3000))),
            "a chain of more than",
            (None, None, None),
        ),
        (
            wrapped("lark", 'start: a\na[capture, temperature=0.5]: "x"'),
            "temperature",
            (2, 12, None),
        ),
        (wrapped("lark", "start[max_tokens=3]: /[a-z]+/"), "cannot count tokens", (1, 7, None)),
        (wrapped("llguidance", {}), "must be", (None, None, None)),
        (wrapped("llguidance", {"grammars": []}), "must be", (None, None, None)),
        (wrapped("llguidance", {"grammars": [{}], "max_tokens": 3}), "must be", (None,) * 3),
        (wrapped("llguidance", {"grammars": [{"regex": "a"}]}), "each grammar", (None,) * 3),
        (wrapped("llguidance", {"grammars": [{"name": "a"}]}), "each grammar", (None,) * 3),
        (wrapped("llguidance", {"grammars": [{"lark_grammar": 1}]}), "a string", (None,) * 3),
        (wrapped("llguidance", {"grammars": [{"json_schema": 1}]}), "an object", (None,) * 3),
        (
            wrapped("llguidance", {"grammars": [{"name": 1, "json_schema": {}}]}),
            "name",
            (None, None, None),
        ),
        (
            wrapped("llguidance", {"grammars": [{"json_schema": {"items": {"extends": {}}}}]}),
            "keyword extends",
            (None, None, "/grammars/0/json_schema/items/extends"),
        ),
        (
            wrapped(
                "llguidance",
                {
                    "grammars": [
                        {"lark_grammar": "start: @a"},
                        {"name": "a", "json_schema": {"items": {"oneOf": [{"multipleOf": 2}, {}]}}},
                    ]
                },
            ),
            "oneOf cannot be enforced",
            (None, None, "/grammars/1/json_schema/items/oneOf"),
        ),
        (
            wrapped("lark", 'start: "a" b\nb: %json {"items": {"extends": {}}} "c"'),
            "keyword extends",
            (2, 10, "/items/extends"),
        ),
        (
            wrapped("lark", 'start: "%json {" %json {"oneOf": [{"multipleOf": 2}, {}]}'),
            "oneOf cannot be enforced",
            (1, 24, "/oneOf"),
        ),
        (
            wrapped("lark", 'start: %json {\n"minlength": 1}\n'),
            "did you mean minLength",
            (1, 14, "/minlength"),
        ),
        (
            wrapped("lark", 'start: %json {\n"properties": {"a": {}}\n} b\nb: "b" c'),
            "c is not defined",
            (4, 4, None),
        ),
        (
            wrapped(
                "llguidance",
                {
                    "grammars": [
                        {"lark_grammar": "start: @a"},
                        {"name": "a", "lark_grammar": 'start: "x"\n  | b'},
                    ]
                },
            ),
            "b is not defined",
            (1, 8, "/grammars/1/lark_grammar"),
        ),
    ],
)
def test_a_refusal_names_reason_and_place(
    value: dict[str, Any], reason: str, place: tuple[Any, ...]
) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        translate(Constraint("grammar", value))
    assert (caught.value.line, caught.value.column, caught.value.pointer) == place


def test_schemas_inside_lark_mean_what_they_mean_elsewhere() -> None:
    schema = '{"type": "integer", "format": "uint8", "x-order": 1}'
    translated = translate(Constraint("grammar", wrapped("lark", f"start: %json {schema}")))
    assert accepts(translated.grammar, "255")
    assert not accepts(translated.grammar, "256")
    (finding,) = translated.warnings
    assert (finding.keyword, finding.pointer, finding.message[:7]) == (
        "x-order",
        "/x-order",
        "line 1:",
    )


def test_a_clients_options_inside_lark_are_kept() -> None:
    items = '"type": "array", "items": {"type": "null"}'
    for options, text, fits in (
        ("{}", "[null,  null]", True),
        ('{"whitespace_flexible": false}', "[null,  null]", False),
        ('{"lenient": true}', "[null,null]", True),
    ):
        lark = f'start: %json {{{items}, "x-guidance": {options}}}'
        assert accepts(translated(lark), text) is fits
    lenient = 'start: %json {"not": {}, "x-guidance": {"lenient": true}}'
    assert accepts(translated(lenient), "1")


def test_what_is_no_schema_inside_lark_is_refused() -> None:
    for inside in ("{nothing}", "{", '{"type": 1}', '{"x-guidance": 1}'):
        with pytest.raises(GrammarError):
            translate(Constraint("grammar", wrapped("lark", f"start: %json {inside}")))


def test_half_a_surrogate_pair_inside_lark_is_refused_with_its_place() -> None:
    with pytest.raises(GrammarError, match="half of a surrogate pair; write both") as caught:
        translated('start: "a"\n | %json {"const": "\\ud800"}')
    assert (caught.value.line, caught.value.column) == (2, 10)
    assert accepts(translated('start: %json {"const": "\\ud83d\\ude00"}'), '"\U0001f600"')


def test_warnings_have_the_place_of_their_grammar() -> None:
    value = {"grammars": [{"json_schema": {"items": {"x-order": 1}}}]}
    (finding,) = translate(Constraint("grammar", wrapped("llguidance", value))).warnings
    assert finding.pointer == "/grammars/0/json_schema/items/x-order"


def test_a_capture_is_named_as_one_without_effect() -> None:
    value = wrapped("lark", 'start: a\na[capture="x"]: "a"')
    (finding,) = translate(Constraint("grammar", value)).warnings
    assert finding.keyword == "capture"
    assert finding.message.startswith("line 2, column 3: capture has no effect")
