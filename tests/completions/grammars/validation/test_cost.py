"""What compiles and then fails or crawls."""

import json
import re
import threading
import time
from pathlib import Path

import pytest

from completions.grammars import Constraint, Limits, TokenSource, ValidationRequest, json_schema
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError
from completions.grammars.messages import TOO_MANY_ALTERNATIVES
from completions.grammars.validation import cost, examination
from completions.grammars.validation.cost import check_cost

ALTERNATIVES = {
    "type": "object",
    "properties": {f"p{i}": {"type": "string"} for i in range(999)},
}


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "A" | "B"',
        'start: ""',
        "start: /(?s:.*)/",
        'start: "a" start "b" | "c"',
        json.dumps({"grammars": [{"json_schema": {"type": "object"}}]}),
    ],
)
def test_ordinary_grammars_pass(grammar: str, tiny_model: Path) -> None:
    check_cost(grammar, Compiler())
    check_cost(grammar, Compiler(TokenSource(str(tiny_model / "tokenizer.json"), 260, (257,))))


COSTS = {
    'start: start start | "a" | "b" | ""': True,
    "start: /(?s:.){0,2000}/": False,
    "start: /[a-z ]{400}/": False,
    'start: e\ne: e /[-+*\\/]/ e | /[a-z0-9 ]+/ | "(" e ")"': False,
    json.dumps({"grammars": [{"json_schema": {"type": "object"}}]}): False,
}
"""Grammars, and whether they take too much work for MOST_WORK."""
MOST_WORK = 12_000


@pytest.mark.parametrize("slower", [1, 8])
@pytest.mark.parametrize("grammar", COSTS)
def test_verdicts_do_not_depend_on_the_machine(
    grammar: str, slower: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside threads that hold the processors, by a clock that counts several times as much."""
    real, done = time.thread_time, threading.Event()
    monkeypatch.setattr(time, "thread_time", lambda: slower * real())
    monkeypatch.setattr(cost, "UNCOUNTED_SECONDS", 0.0)
    load = [threading.Thread(target=_spin, args=(done,)) for _ in range(4 * (slower > 1))]
    for each in load:
        each.start()
    try:
        reason = ""
        try:
            check_cost(grammar, Compiler(limits=Limits(step_work=MOST_WORK)))
        except GrammarError as error:
            reason = error.message
    finally:
        done.set()
        for each in load:
            each.join()
    assert ("steps for each token, more than 12,000" in reason) == COSTS[grammar]
    assert bool(reason) == COSTS[grammar]


def _spin(done: threading.Event) -> None:
    while not done.is_set():
        pass


def test_a_grammar_that_fails_after_its_first_token() -> None:
    grammar = json_schema.translate(ALTERNATIVES).grammar
    with pytest.raises(GrammarError, match="too many alternatives at once"):
        check_cost(grammar, Compiler())


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
        check_cost(grammar, Compiler(limits=limits))


@pytest.mark.parametrize(
    ("grammar", "cause"),
    [
        ('root ::= ws root "a" | "b"\nws ::= " "*', None),
        ('root ::= ws root "a" | "b"\nws ::= " "?', r"rule root \(line 1, column 1\) leads back"),
        (
            'root ::= "x" a\na ::= ws b "x" | "1"\nb ::= a "y" | "2"\nws ::= "" | " "',
            r"rule a \(line 2, column 1\) leads back to itself behind a part that may be empty",
        ),
    ],
)
def test_what_is_too_complex_names_its_hidden_left_recursion(
    grammar: str, cause: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_grammar: str, _compiler: Compiler) -> None:
        raise GrammarError(TOO_MANY_ALTERNATIVES)

    monkeypatch.setattr(examination, "check_cost", refuse)
    verdict = examination.validate(ValidationRequest(Constraint("ebnf", grammar)), Limits())
    assert re.search(cause or "make it less ambiguous", str(verdict.error))
