"""What compiles and then fails or crawls."""

import json
from pathlib import Path

import pytest

from completions.grammars import Limits, TokenSource, json_schema
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError
from completions.grammars.judging.rehearsal import rehearse

ALTERNATIVES = {
    "type": "object",
    "properties": {f"p{i}": {"type": "string"} for i in range(999)},
}


@pytest.mark.parametrize(
    "grammar",
    ['start: "A" | "B"', 'start: ""', "start: /(?s:.*)/", 'start: "a" start "b" | "c"',
     json.dumps({"grammars": [{"json_schema": {"type": "object"}}]})],
)  # fmt: skip
def test_ordinary_grammars_pass(grammar: str, tiny_model: Path) -> None:
    rehearse(grammar, Compiler())
    rehearse(grammar, Compiler(TokenSource(str(tiny_model / "tokenizer.json"), 260, (257,))))


def test_a_grammar_that_fails_after_its_first_token() -> None:
    grammar = json_schema.translate(ALTERNATIVES).grammar
    with pytest.raises(GrammarError, match="too many alternatives at once"):
        rehearse(grammar, Compiler())


@pytest.mark.parametrize(
    ("grammar", "limits", "reason"),
    [
        ('start: "abcdef" /x*/', Limits(max_forced=5), "forces more than 5 bytes"),
        ("start: /x*/", Limits(compile_seconds=0), "compiling it takes"),
        ("start: /x*/", Limits(step_seconds=0), "ms for each token; make it less ambiguous"),
    ],
)
def test_costs_are_bounded(grammar: str, limits: Limits, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        rehearse(grammar, Compiler(limits=limits))
