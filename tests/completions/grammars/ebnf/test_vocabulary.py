"""Tokens by id and by text, over a vocabulary of letters and some special tokens."""

from typing import Any

import pytest
from llguidance import LLMatcher
from tokenizers import AddedToken, Tokenizer, decoders, models

from completions.contract.llguidance_limits import VALIDATION_LIMITS
from completions.grammars import Constraint, TokenSource, translate
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError
from completions.grammars.tokens import load

LETTERS = "abcdefghijklmnopqrstuvwxyz()"
SPECIAL = ("<call>", "<end>", "<eos>")
CALL, END, EOS = range(len(LETTERS), len(LETTERS) + 3)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """The ids of letters are their places; the model has five rows more than tokens."""
    made = Tokenizer(models.BPE({each: id for id, each in enumerate(LETTERS)}, []))
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(each, special=True) for each in SPECIAL])
    path = tmp_path_factory.mktemp("model") / "tokenizer.json"
    made.save(str(path))
    return Compiler(TokenSource(str(path), EOS + 6, (EOS,)))


def ids(text: str) -> list[int]:
    """Token ids of letters and of <call>, written !, and <end>, written ?."""
    return [{"!": CALL, "?": END}.get(each, LETTERS.find(each)) for each in text]


def accepts(grammar: str, compiler: Compiler, text: str) -> bool:
    matcher = LLMatcher(load(compiler.tokens), grammar, log_level=0, limits=VALIDATION_LIMITS)
    taken = matcher.try_consume_tokens(ids(text))
    assert not matcher.is_error(), matcher.get_error()
    return taken == len(text) and bool(matcher.is_accepting())


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (f"root ::= Token({CALL}) [a-z]+ Token({END})", "!ab?", "!ab ab? !a! !?"),
        ('root ::= Token("<call>") "a" | Token(2, 3)', "!a c d", "a ! ca b"),
        ('root ::= (ExcludeToken("<end>", 0))* Token("<end>") "a"', "?a bc!?a", "a?a ? b?"),
        (f"root ::= ExcludeToken({EOS})", "a ! ?", "aa"),
        ('root ::= Token("a") a\na ::= "(" a ")" | Token("b", "<call>")', "ab a! a((b))", "a(! b"),
        ('root ::= TokenTagDispatch(excludes=("<end>",))', " abc!a( !!", "ab? ?"),
        (
            'root ::= TokenTagDispatch(("<call>", body))\nbody ::= [a-c]+ ")"',
            " xyz !ab) x!a)y!b) x?x !ab)z",
            "! !x) !ab x!a)!",
        ),
        (
            f"root ::= TokenTagDispatch(({CALL}, body), loop_after_dispatch=false) Token(29)\n"
            'body ::= "(" [a-z]* ")"',
            "!(ab)? z!()? z?",
            "!(ab) !(ab)z? zz",
        ),
    ],
)
def test_token(compiler: Compiler, grammar: str, good: str, bad: str) -> None:
    written = translate(Constraint("ebnf", grammar), compiler).grammar
    assert [each for each in good.split(" ") if not accepts(written, compiler, each)] == []
    assert [each for each in bad.split(" ") if accepts(written, compiler, each)] == []


def test_max_tokens_bounds_tokens_by_id(compiler: Compiler) -> None:
    grammar = 'root ::= a Token("<end>")\na[max_tokens=2] ::= "" | ExcludeToken("<end>") a'
    written = translate(Constraint("ebnf", grammar), compiler).grammar
    assert all(accepts(written, compiler, each) for each in ("?", "a?", "a!?"))
    assert not accepts(written, compiler, "a!b?")


def test_text_goes_on_where_free_tokens_allow_the_same(compiler: Compiler) -> None:
    grammar = 'root ::= TokenTagDispatch(("<call>", body))\nbody ::= [a-c]+'
    written = translate(Constraint("ebnf", grammar), compiler).grammar
    assert accepts(written, compiler, "x!abcx!a")
    assert not accepts(written, compiler, "!x")


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= Token("a") "x" | [a-c] "y"',
        "root ::= [a-z]+ Token(0)",
        'root ::= ExcludeToken("<call>")* "end"',
        'root ::= TokenTagDispatch(("<call>", a), loop_after_dispatch=false) "x"\na ::= "y"',
        'root ::= a ExcludeToken("<call>")*\na ::= "a" | "ab" Token("<call>")',
    ],
)
def test_a_token_that_could_also_be_text_is_refused(compiler: Compiler, grammar: str) -> None:
    with pytest.raises(GrammarError, match="text and a token by id can be the same token"):
        translate(Constraint("ebnf", grammar), compiler)


@pytest.mark.parametrize(
    ("grammar", "column", "reason"),
    [
        ("root ::= Token(31)", 16, "no token 31; its ids end at 30"),
        ('root ::= Token("<think>")', 16, "no token '<think>'"),
        ("root ::= Token(30)", 16, "ends the text wherever the grammar does"),
        ("root ::= ExcludeToken(1, 99)", 26, "no token 99"),
        (
            "root ::= TokenTagDispatch((28, root), excludes=(28,))",
            39,
            "both a trigger and excluded",
        ),
        ("root ::= TokenTagDispatch((99, root))", 28, "no token 99"),
        (f"root ::= ExcludeToken({', '.join(map(str, range(30)))})", 10, "no token is left"),
    ],
)
def test_refused(compiler: Compiler, grammar: str, column: int, reason: str) -> None:
    with pytest.raises(GrammarError) as caught:
        translate(Constraint("ebnf", grammar), compiler)
    assert reason in caught.value.message
    assert (caught.value.line, caught.value.column) == (1, column)


def tagged(compiler: Compiler, node: dict[str, Any]) -> str:
    constraint = Constraint("structural_tag", {"type": "structural_tag", "format": node})
    return translate(constraint, compiler).grammar


def test_free_tokens_in_a_tag_leave_out_its_end(compiler: Compiler) -> None:
    end = {"type": "token", "token": "<end>"}
    tag = {"type": "tag", "begin": "(", "content": {"type": "any_tokens"}, "end": end}
    written = tagged(compiler, {"type": "sequence", "elements": [tag, tag]})
    assert accepts(written, compiler, "(!a?(?")
    assert not accepts(written, compiler, "(??(?")


def test_text_after_free_tokens_is_refused(compiler: Compiler) -> None:
    tag = {"type": "tag", "begin": "(", "content": {"type": "any_tokens"}, "end": ")"}
    with pytest.raises(GrammarError, match="let a token end them") as caught:
        tagged(compiler, tag)
    assert caught.value.pointer == "/format/content"


def test_sets_of_tokens_may_overlap(compiler: Compiler) -> None:
    nodes = [{"type": "exclude_token", "exclude_tokens": [0]}, {"type": "token", "token": 1}]
    written = tagged(
        compiler,
        {
            "type": "or",
            "elements": [
                {"type": "sequence", "elements": [nodes[0], nodes[1], nodes[1]]},
                {"type": "sequence", "elements": [nodes[1], nodes[0]]},
            ],
        },
    )
    assert [
        each for each in ("bbb", "!bb", "bb", "bc") if not accepts(written, compiler, each)
    ] == []
    assert [each for each in ("abb", "b", "cb", "ba") if accepts(written, compiler, each)] == []


def test_inside_a_structural_tag(compiler: Compiler) -> None:
    grammar = {"type": "grammar", "grammar": 'root ::= Token("<call>") root | "a"'}
    tag = {"type": "tag", "begin": "(", "content": grammar, "end": ")"}
    written = tagged(compiler, tag)
    assert accepts(written, compiler, "(!!a)")
    assert not accepts(written, compiler, "(!!)")
