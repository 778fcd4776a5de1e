"""Our own rules around clients' constraints: one grammar, faults named where they were given."""

import pytest

from completions.grammars import Constraint, translate
from completions.grammars.compiler import DEFAULT_COMPILER
from completions.grammars.composition import Part, compose
from completions.grammars.exceptions import GrammarError
from completions.grammars.judging.matching import match


def accepts(constraint: Constraint, text: str) -> bool:
    return match(translate(constraint).grammar, text, DEFAULT_COMPILER).accepts


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        (Constraint("regex", "[0-9]+"), "12", "a"),
        (Constraint("ebnf", 'root ::= "a" root | "b"'), "aab", "aa"),
        (Constraint("json_schema", {"type": "integer"}), "3", '"3"'),
        (
            Constraint("response_format", {"type": "json_object", "json_schema": None}),
            '{"a":1}',
            "[1]",
        ),
        (Constraint("grammar", {"type": "lark", "value": 'start: "x" y\ny: "y"'}), "xy", "x"),
        (
            Constraint(
                "grammar",
                {
                    "type": "llguidance",
                    "value": {
                        "grammars": [
                            {"name": "first", "lark_grammar": "start: @second"},
                            {"name": "second", "json_schema": {"const": 1}},
                        ]
                    },
                },
            ),
            "1",
            "2",
        ),
    ],
)
def test_any_constraint_can_be_a_part(part: Constraint, good: str, bad: str) -> None:
    whole = compose('start: "<" @it ">"', (Part("it", part),), "somewhere")
    assert accepts(whole, f"<{good}>")
    assert not accepts(whole, f"<{bad}>")
    assert not accepts(whole, good)


def test_parts_do_not_see_each_others_rules() -> None:
    rules = 'start: word\nword: "w"'
    part = Constraint("grammar", {"type": "lark", "value": rules})
    whole = compose('start: word @one @two\nword: "-"', (Part("one", part), Part("two", part)), "")
    assert accepts(whole, "-ww")


def test_a_fault_is_named_where_it_was_given() -> None:
    part = Constraint("json_schema", {"items": {"not": {}}}, place="tools[3].parameters")
    with pytest.raises(GrammarError) as caught:
        translate(compose("start: @it", (Part("it", part),), "tools"))
    assert (caught.value.field, caught.value.pointer) == ("tools[3].parameters", "/items/not")
    with pytest.raises(GrammarError) as caught:
        translate(compose("start: @it", (Part("it", Constraint("regex", "(")),), "tools"))
    assert caught.value.field == "regex"
    with pytest.raises(GrammarError) as caught:
        translate(compose("start: missing", (), "tools"))
    assert caught.value.field == "tools"
