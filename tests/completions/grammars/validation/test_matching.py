"""Which texts fit, with a model's own tokens."""

from pathlib import Path

import pytest

from completions.grammars import Constraint, Limits, TokenSource, translate
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError, GrammarTimeoutError
from completions.grammars.tokens import load
from completions.grammars.validation.matching import Match, match


@pytest.fixture
def compiler(tiny_model: Path) -> Compiler:
    return Compiler(TokenSource(str(tiny_model / "tokenizer.json"), 260, (257,)))


@pytest.mark.parametrize(
    ("field", "value", "text", "expected"),
    [
        ("regex", "[a-z]+", "abc", Match(True, 3)),
        ("regex", "[a-z]+", "abc1d", Match(False, 3)),
        ("regex", "[a-z]+", "", Match(False, 0)),
        ("regex", "a*", "", Match(True, 0)),
        ("regex", "é+", "éé", Match(True, 2)),
        ("regex", "é+", "éè", Match(False, 1)),  # they share their first byte
        ("json_schema", {"const": "</s>"}, '"</s>"', Match(True, 6)),
        ("json_schema", {"const": "</s>"}, '"<s>"', Match(False, 2)),
        ("json_schema", {"type": "null"}, "nul", Match(False, 3)),
        ("ebnf", 'root ::= "a" root "b" | "c"', "aacbb", Match(True, 5)),
        ("ebnf", 'root ::= "a" root "b" | "c"', "aacbbb", Match(False, 5)),
        ("grammar", {"type": "lark", "value": 'start: "a" <s> "b"'}, "a<s>b", Match(True, 5)),
        ("grammar", {"type": "lark", "value": 'start: "a" <s> "b"'}, "a<t>b", Match(False, 1)),
        ("grammar", {"type": "lark", "value": 'start: "<s>"'}, "<s>", Match(True, 3)),
    ],
)
def test_a_text_matches_up_to_its_first_wrong_character(
    field: str, value: object, text: str, expected: Match, compiler: Compiler
) -> None:
    grammar = translate(Constraint(field, value), compiler).grammar
    assert match(grammar, text, compiler) == expected


def test_a_text_of_several_pieces_is_followed_through_all_of_them(compiler: Compiler) -> None:
    grammar = translate(Constraint("regex", "(é<s>)*"), compiler).grammar
    assert match(grammar, "é<s>" * 500, compiler) == Match(True, 2_000)
    assert match(grammar, "é<s>" * 500 + "x", compiler) == Match(False, 2_000)


def test_a_text_that_takes_too_long_is_given_up() -> None:
    hasty = Compiler(limits=Limits(seconds=0.0))
    with pytest.raises(GrammarTimeoutError, match="trying the text took longer than 0 seconds"):
        match('start: "a"*', "a" * 1_000, hasty)


def test_only_the_models_own_tokens_exist(compiler: Compiler) -> None:
    assert load(compiler.tokens).vocab_size == 260  # padding included
    for lark, reason in (
        ("<|im_start|>", r"no special token <\|im_start\|>"),
        ("<[260]>", "no token 260"),
    ):
        value = {"type": "lark", "value": f"start: {lark}"}
        with pytest.raises(GrammarError, match=reason):
            translate(Constraint("grammar", value), compiler)
    assert translate(Constraint("grammar", {"type": "lark", "value": "start: <s>"}), compiler)
