"""Children that judge, die and are replaced."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from completions import child_process
from completions.contract.llguidance_threads import NICENESS
from completions.grammars import Constraint, Limits, TokenSource, ValidationRequest
from completions.grammars.exceptions import (
    GrammarError,
    GrammarOverloadError,
    GrammarTimeoutError,
)
from completions.grammars.validation import children as module
from completions.grammars.validation.children import Child, Children
from completions.grammars.validation.examination import validate
from completions.grammars.validation.matching import Match


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children(Limits())
    yield children
    children.close()


def request(value: str, text: str | None = None) -> ValidationRequest:
    return ValidationRequest(Constraint("regex", value), None, text)


def test_verdicts_are_the_same_as_in_the_own_process(children: Children, tiny_model: Path) -> None:
    words = TokenSource(str(tiny_model / "tokenizer.json"), 260, (257,))
    schema = {"items": {"not": {}}, "x": 1}
    for asked in (
        request("a+", "aab"),
        request("a("),
        ValidationRequest(Constraint("json_schema", schema), words),
        ValidationRequest(Constraint("json_schema", {"type": "null"}, "flexible"), words, "null"),
    ):
        verdict, own = children.ask(asked)[0], validate(asked, Limits())
        assert verdict.to_json() == own.to_json()
    assert children.ask(request("a+", "aab"))[0].match == Match(False, 2)


def test_one_child_serves_until_it_is_worn(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "MAX_QUESTIONS", 2)
    seen = []
    for _ in range(3):
        with children.borrow() as child:
            seen.append(child.pid)
            assert child.ask(request("a"))[0].error is None
    assert seen[0] == seen[1] != seen[2]


def test_a_dying_child_is_a_refusal_and_is_replaced(children: Children) -> None:
    with children.borrow() as child:
        os.kill(child.pid, signal.SIGKILL)
        composed = Constraint("regex", "a", path="tools")
        verdict, _ = child.ask(ValidationRequest(composed))
    with pytest.raises(GrammarError, match=r"^tools: too complex to check"):
        verdict.get_grammar()
    assert children.ask(request("a"))[0].error is None


def test_a_child_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.2)
    child = Child(Limits(seconds=0.1))
    os.kill(child.pid, signal.SIGSTOP)
    assert isinstance(child.ask(request("a"))[0].error, GrammarOverloadError)
    assert child.is_worn
    child.close()


def test_a_child_that_computes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 300.0)
    child = Child(Limits(seconds=0.5))
    multiples = {"anyOf": [{"type": "integer", "multipleOf": 9_901 + i} for i in range(50)]}
    endless = ValidationRequest(Constraint("json_schema", multiples))
    verdict, seconds = child.ask(endless)
    assert isinstance(verdict.error, GrammarTimeoutError)
    assert seconds == 0.5
    assert child.is_worn
    child.close()


def test_a_child_steps_back_behind_everything_else(children: Children) -> None:
    with children.borrow() as child:
        niceness = os.getpriority(os.PRIO_PROCESS, child.pid)
    assert niceness == min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICENESS, 19)


def test_a_child_ends_with_its_parent() -> None:
    command = [sys.executable, "-m", module.CHILD, json.dumps(asdict(Limits()))]
    with subprocess.Popen(command, cwd=child_process.ROOT, stdin=subprocess.PIPE) as child:
        assert child.poll() is None
        child.communicate(timeout=60)  # closes the child's input, as the end of a parent does
    assert child.returncode == 0


def test_a_child_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_SECRET_KEY", "secret")
    child = Child(Limits())
    assert child.ask(request("a"))[0].error is None
    environment = Path(f"/proc/{child.pid}/environ").read_bytes()
    assert b"QUIRE_SECRET_KEY" not in environment
    child.close()
