"""Free text up to tags, after which recursive rules come."""

import itertools
import random
from pathlib import Path

import pytest

from completions.grammars import Constraint, ebnf
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError
from completions.grammars.tokens import TokenSource
from completions.grammars.translation import translate
from completions.grammars.validation.cost import check_cost
from tests.completions.grammars.byte_matcher import accepts
from tests.representatives import stand_for_all

NESTED = 'body ::= "(" (body | [a-z]*) ")"'


def dispatch(tags: list[str], rule: str = "body", options: str = "") -> str:
    pairs = ", ".join(f'("{tag}", {rule})' for tag in tags)
    return f"root ::= TagDispatch({pairs}{options})"


OPTIONS = ["", ", loop_after_dispatch=false", ', excludes=("(x",)']
BODIES = [NESTED, 'body ::= "(" body ")" | [a-b]+ "x"', 'body ::= "[" body "]" | "a" | body "b"']


@pytest.mark.represented_by('-body ::= "(" (body | [a-z]*) ")"')
@pytest.mark.parametrize(
    ("options", "body"),
    stand_for_all(zip(OPTIONS, BODIES, strict=True), itertools.product(OPTIONS, BODIES)),
)
def test_the_same_texts_as_character_by_character(body: str, options: str) -> None:
    text = f"{dispatch(['<a>', '<b>'], options=options)}\n{body}"
    slow, quick = ebnf.translate(text), translate(Constraint("ebnf", text)).grammar
    pieces = ["<a>", "<b>", "<", "(", ")", "(a)", "[", "]", "a", "b", "x"]
    chosen = random.Random(0)  # noqa: S311
    accepted = 0
    for length in list(range(8)) * 12:
        sample = "".join(chosen.choices(pieces, k=length))
        assert accepts(quick, sample) == accepts(slow, sample), sample
        accepted += accepts(slow, sample)
    assert 0 < accepted < 96


def test_many_tags_with_a_models_tokens(tiny_model: Path) -> None:
    text = f"{dispatch([f'<t{number}>' for number in range(200)])}\n{NESTED}"
    compiler = Compiler(TokenSource(str(tiny_model / "tokenizer.json"), 260, (257,)))
    grammar = translate(Constraint("ebnf", text), compiler).grammar
    check_cost(grammar, compiler)
    assert accepts(grammar, "so <t17>((ab)) and <t199>() end")
    assert not accepts(grammar, "so <t17>((ab) and")


def test_each_tag_with_its_own_rule() -> None:
    text = (
        f'root ::= TagDispatch(("<a>", body), ("<b>", more))\n{NESTED}\nmore ::= "[" more "]" | "x"'
    )
    grammar = translate(Constraint("ebnf", text)).grammar
    assert accepts(grammar, "1<a>(())2<b>[[x]]3")
    assert not accepts(grammar, "1<a>[x]")
    assert not accepts(grammar, "1<b>()")


def test_faults_in_its_rules_keep_their_place() -> None:
    with pytest.raises(GrammarError, match=r"^ebnf: line 2, column 1: the rule body can never end"):
        translate(Constraint("ebnf", f'{dispatch(["<a>"])}\nbody ::= "(" body ")"'))


def test_elsewhere_than_at_the_root_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a whole vocabulary; bytes alone are few enough."""
    monkeypatch.setattr(Compiler, "find_error", lambda *_: "Parser Error: too many items (limit)")
    text = f'root ::= "x" call\n{dispatch(["<a>"]).replace("root", "call")}\n{NESTED}'
    with pytest.raises(GrammarError, match=r"TagDispatch that leads to .* whole of root"):
        translate(Constraint("ebnf", text))
