"""How a request was run, for who asks."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from completions.http import runtime
from completions.jobs.submission import Times
from completions.responses import meta
from completions.responses.completion import View
from completions.responses.meta import meta_of

VIEW = View("cmpl-1", "m", 0, 1, [3], truncated_tokens=2)


@pytest.fixture
def times(monkeypatch):
    """What Redis tells of a job's times; an exception is raised."""
    told = [Times(10.0, 10.5, 10.7, 11.0, "worker-1")]

    class Here:
        @property
        def submission(self):
            return self

        async def times(self, job_id):
            if isinstance(told[0], Exception):
                raise told[0]
            return told[0]

    async def current():
        return Here()

    monkeypatch.setattr(runtime, "current", current)
    return told


async def test_times_and_worker(times):
    assert await meta_of(VIEW, ["stop"]) == {
        "queue_ms": 500.0, "prefill_ms": 200.0, "decode_ms": 300.0, "worker": "worker-1",
        "truncated_prompt_tokens": 2, "grammar_compile_ms": None, "warnings": [],
    }  # fmt: skip


@pytest.mark.parametrize("answer", [None, RedisConnectionError("gone")])
async def test_what_redis_does_not_know_is_null(times, answer):
    times[0] = answer
    told = await meta_of(VIEW, ["stop"])
    assert (told["queue_ms"], told["worker"], told["truncated_prompt_tokens"]) == (None, None, 2)


@pytest.mark.parametrize(
    ("constrained", "by_default", "ends", "warnings"),
    [
        (True, False, ["stop", "length"], [meta.GRAMMAR_INCOMPLETE]),
        (False, True, ["length"], [meta.MAX_TOKENS_DEFAULT]),
        (True, True, ["stop"], []),
        (False, False, ["length"], []),
    ],
)
async def test_warnings(times, constrained, by_default, ends, warnings):
    view = View(
        "cmpl-1", "m", 0, 1, [3], constrained=constrained, default_length=by_default,
        grammar_compile_ms=1.5,
    )  # fmt: skip
    told = await meta_of(view, ends)
    assert (told["warnings"], told["grammar_compile_ms"]) == (warnings, 1.5)
