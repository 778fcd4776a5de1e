"""Judged off the loop, within time, and remembered."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from completions.grammars import (
    Caller,
    Constraint,
    Limits,
    ValidationRequest,
    ValidationResult,
    Validator,
)
from completions.grammars.exceptions import (
    GrammarError,
    GrammarOverloadError,
    GrammarTimeoutError,
)
from completions.grammars.validation import validator as module
from completions.grammars.validation.children import Children
from completions.grammars.validation.validator import THREADS, ResultCache
from tests.completions.grammars.hostile import rules
from tests.completions.grammars.json_schema.test_schema import chain
from tests.running import until_other_threads_sleep


@pytest.fixture
def judge() -> Iterator[Validator]:
    judge = Validator()
    yield judge
    judge.close()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Examining waits until the event is set."""
    release = threading.Event()

    def hang(request: ValidationRequest, limits: Limits) -> ValidationResult:
        release.wait(30)
        return ValidationResult("never used")

    monkeypatch.setattr(module, "validate", hang)
    yield release
    release.set()


@pytest.fixture
def spinning(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Examining uses a processor until the event is set."""
    release = threading.Event()

    def spin(request: ValidationRequest, limits: Limits) -> ValidationResult:
        while not release.is_set():
            pass
        return ValidationResult("never used")

    monkeypatch.setattr(module, "validate", spin)
    monkeypatch.setattr(Limits, "patience", 60.0)
    yield release
    release.set()


@pytest.fixture
def hasty() -> Iterator[Validator]:
    judge = Validator(Limits(seconds=0.05))
    yield judge
    judge.close()


async def test_grammars_and_refusals(judge: Validator) -> None:
    assert "start:" in await judge.validate_grammar(Constraint("ebnf", 'root ::= "A" | "B"'))
    with pytest.raises(
        GrammarError, match=r"^regex: line 1, column 2: this . is not closed; write a"
    ):
        await judge.validate_grammar(Constraint("regex", "a("))
    with pytest.raises(GrammarError, match=r"^ebnf: longer than 262144 bytes: it has \d+; send"):
        await judge.validate_grammar(Constraint("ebnf", "#" * 2_000_000))


async def test_each_question_is_examined_once_even_when_asked_at_once(
    judge: Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def count(request: ValidationRequest, limits: Limits) -> ValidationResult:
        calls.append(request.constraint.value)
        return ValidationResult(error=GrammarError("bad", 1, 2, pointer="/a"))

    monkeypatch.setattr(module, "validate", count)
    constraint = Constraint("json_schema", {"b": 1, "a": 2})
    for _ in range(2):
        errors = await asyncio.gather(
            *(judge.validate_grammar(constraint) for _ in range(3)), return_exceptions=True
        )
        assert [(e.line, e.column, e.pointer) for e in errors] == [(1, 2, "/a")] * 3
        assert len(set(map(id, errors))) == 3  # each request gets its own to raise
    assert calls == [{"b": 1, "a": 2}]


async def test_one_organization_does_not_hold_up_another(
    judge: Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang(request: ValidationRequest, limits: Limits) -> ValidationResult:
        if request.constraint.value != "theirs":
            release.wait(30)
        return ValidationResult("start: X")

    monkeypatch.setattr(module, "validate", hang)
    own = [
        asyncio.create_task(
            judge.validate(ValidationRequest(Constraint("regex", f"a{number}")), Caller(1))
        )
        for number in range(2 * THREADS)
    ]
    await asyncio.sleep(0)
    assert (
        await judge.validate(ValidationRequest(Constraint("regex", "theirs")), Caller(2))
    ).error is None
    assert not any(task.done() for task in own)
    release.set()
    await asyncio.gather(*own)


async def test_examining_costs_the_asker_and_a_cached_verdict_does_not(judge: Validator) -> None:
    costly = Constraint("json_schema", {"enum": [f"x{number}" for number in range(3000)]})
    for constraint in (Constraint("regex", "[ab]{1,50}"), costly):
        caller = Caller(1)
        await judge.validate(ValidationRequest(constraint), caller)
        assert caller.spent > 0
        again = Caller(1)
        await judge.validate(ValidationRequest(constraint), again)
        assert again.spent == 0


@pytest.mark.usefixtures("spinning")
async def test_time_limit(hasty: Validator) -> None:
    with pytest.raises(GrammarTimeoutError, match="ebnf: checking it took longer"):
        await hasty.validate_grammar(Constraint("ebnf", "x"))


@pytest.mark.wide
async def test_children_judge_while_all_threads_are_stuck(
    spinning: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    judge = Validator(Limits(seconds=0.5))
    try:
        slow = [
            judge.validate(ValidationRequest(Constraint("ebnf", str(i)))) for i in range(THREADS)
        ]
        for verdict in await asyncio.gather(*slow):
            assert isinstance(verdict.error, GrammarTimeoutError)
        assert "child processes validate instead" in caplog.text
        assert "[ab]+" in await judge.validate_grammar(Constraint("regex", "[ab]+"))
        with pytest.raises(GrammarError, match="nested deeper"):
            await judge.validate_grammar(Constraint("regex", "(" * 300))
        spinning.set()
        await asyncio.sleep(0.1)
        assert await judge.validate_grammar(Constraint("regex", "[cd]+")) == "never used"
    finally:
        judge.close()


@pytest.mark.wide
def test_a_thread_that_outlives_its_event_loop_is_used_again(spinning: threading.Event) -> None:
    """The background worker has an event loop for each task."""
    judge = Validator(Limits(seconds=0.3))
    try:
        for number in range(THREADS):
            verdict = asyncio.run(
                judge.validate(ValidationRequest(Constraint("ebnf", str(number))))
            )
            assert isinstance(verdict.error, GrammarTimeoutError)
        spinning.set()
        time.sleep(0.2)
        assert asyncio.run(judge.validate_grammar(Constraint("regex", "[cd]+"))) == "never used"
    finally:
        judge.close()


@pytest.mark.usefixtures("stuck")
async def test_waiting_for_a_processor_is_overload_not_the_clients_fault(hasty: Validator) -> None:
    errors = await asyncio.gather(
        *(hasty.validate_grammar(Constraint("ebnf", str(i))) for i in range(THREADS + 1)),
        return_exceptions=True,
    )
    assert [type(error) for error in errors] == [GrammarOverloadError] * (THREADS + 1)


async def test_what_the_caps_refuse_takes_no_child(
    judge: Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Children, "ask", None)
    for field, value, message in (
        ("json_schema", chain(1000), "ref chains lead through more than 500 levels"),
        ("ebnf", rules(3000, "::=", "root"), "a chain of more than 500 rules"),
        ("regex", "(" * 300, "nested deeper than 256 parentheses"),
        ("grammar", {"type": "lark", "value": rules(3000, ":", "start")}, "more than 500 rules"),
        ("grammar", {"type": "json_schema", "value": chain(1000)}, "ref chains"),
        ("structural_tag", {"format": {"type": "or", "elements": ["x"] * 9000}}, "/elements/0"),
    ):
        with pytest.raises(GrammarError, match=rf"^{field}: .*{message}"):
            await judge.validate_grammar(Constraint(field, value))


async def test_a_verdict_for_lack_of_time_is_not_remembered(
    hasty: Validator, spinning: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraint = Constraint("ebnf", "x")
    assert isinstance(
        (await hasty.validate(ValidationRequest(constraint))).error, GrammarTimeoutError
    )
    monkeypatch.setattr(module, "validate", lambda request, limits: ValidationResult("start: X"))
    assert await hasty.validate_grammar(constraint) == "start: X"


async def test_a_hang_up_does_not_take_the_answer_from_others(
    judge: Validator, stuck: threading.Event
) -> None:
    constraint = Constraint("ebnf", "x")
    first = asyncio.create_task(judge.validate_grammar(constraint))
    second = asyncio.create_task(judge.validate_grammar(constraint))
    await asyncio.sleep(0.05)
    first.cancel()
    stuck.set()
    assert await second == "never used"


async def test_deep_native_recursion_does_not_crash() -> None:
    """A chain that overflows an ordinary stack of 8 MiB, past our own cap."""
    judge = Validator(Limits(max_chain=5000))
    try:
        assert await judge.validate_grammar(Constraint("json_schema", chain(1500)))
    finally:
        judge.close()


@pytest.mark.represented_by("repeated ends")
@pytest.mark.parametrize(
    "endless",
    [
        Constraint("grammar", {"type": "lark", "value": 'start: /a+/ "a"'}),
        Constraint("regex", "(((ab){40,46}){40,46}){40,46}"),
    ],
    ids=["repeated ends", "nested counts"],
)
async def test_a_mask_without_end_leaves_nothing_running(endless: Constraint) -> None:
    judge = Validator(Limits(seconds=0.5))
    try:
        verdict = await judge.validate(ValidationRequest(endless))
        assert isinstance(verdict.error, GrammarTimeoutError)
        await asyncio.to_thread(until_other_threads_sleep)
    finally:
        judge.close()


def test_cache_forgets_refusals_after_a_while_and_the_least_used_when_full() -> None:
    now = 0.0
    cache = ResultCache(1_520, clock=lambda: now)
    cache.put("bad", ValidationResult(error=GrammarError("no")))
    cache.put("a", ValidationResult("A" * 5))
    cache.put("b", ValidationResult("B" * 5))
    now = 59.0
    assert cache.get("bad") is not None
    now = 61.0
    assert cache.get("bad") is None
    assert cache.get("a") == ValidationResult("A" * 5)
    cache.put("c", ValidationResult("C" * 600))
    assert cache.get("b") is None
    assert cache.get("c") is not None
    cache.put("x", ValidationResult("x" * 1_100))
    assert cache.get("x") is None  # too large to keep
