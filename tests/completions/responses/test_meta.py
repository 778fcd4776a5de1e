"""The `meta` of responses."""

import pytest

from completions.jobs.record import JobRecord
from completions.responses import meta
from completions.responses.choice_record import ChoiceRecord
from completions.responses.completion import ResponseContext
from completions.responses.meta import make_meta

ENDED = ChoiceRecord(0, finish_reason="stop")
VIEW = ResponseContext("cmpl-1", "m", 0, 1, [3], truncated_tokens=2)


TIMES = JobRecord(
    id="cmpl-1",
    kind="sync",
    state="completed",
    model="m",
    organization_id=1,
    api_key_id=1,
    created=10.0,
    started=10.5,
    first=10.7,
    finished=11.0,
    last_owner="worker-1",
)


def test_times_and_worker():
    assert make_meta(VIEW, [ENDED], TIMES) == {
        "queue_ms": 500.0,
        "prefill_ms": 200.0,
        "decode_ms": 300.0,
        "worker": "worker-1",
        "truncated_prompt_tokens": 2,
        "grammar_compile_ms": None,
        "warnings": [],
    }


def test_unknown_times_are_null():
    found = make_meta(VIEW, [ENDED], None)
    assert (found["queue_ms"], found["worker"], found["truncated_prompt_tokens"]) == (None, None, 2)


@pytest.mark.parametrize(
    ("constrained", "by_default", "ends", "warnings"),
    [
        (True, False, ["stop", "length"], [meta.GRAMMAR_INCOMPLETE]),
        (False, True, ["length"], [meta.MAX_TOKENS_DEFAULT]),
        (True, True, ["stop"], []),
        (False, False, ["length"], []),
    ],
)
def test_warnings_say_what_cut_the_answer_short(constrained, by_default, ends, warnings):
    view = ResponseContext(
        "cmpl-1",
        "m",
        0,
        1,
        [3],
        constrained=constrained,
        default_length=by_default,
        grammar_compile_ms=1.5,
    )
    found = make_meta(
        view, [ChoiceRecord(n, finish_reason=end) for n, end in enumerate(ends)], TIMES
    )
    assert (found["warnings"], found["grammar_compile_ms"]) == (warnings, 1.5)


@pytest.mark.parametrize(("is_whole", "warnings"), [(True, []), (False, [meta.GRAMMAR_INCOMPLETE])])
def test_what_was_to_be_closed_is_incomplete_only_if_it_is_not_whole(is_whole, warnings):
    view = ResponseContext("cmpl-1", "m", 0, 1, [3], constrained=True, closes=True)
    ending = {"is_whole": is_whole, "closed_at": None}
    record = ChoiceRecord(0, finish_reason="length", limit_ending=ending)
    assert make_meta(view, [record], TIMES)["warnings"] == warnings
