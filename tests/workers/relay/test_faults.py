"""Faults on either side of the relay: a job fails alone, and no result is lost or repeated."""

import pytest
import redis

from completions.jobs.events import ChoiceEvent
from completions.jobs.execute import Execution, StepEvent
from completions.jobs.store import JobStore
from tests.workers.relay.bench import PREFIX, eventually
from workers.engine.exceptions import (
    DeadlineExceeded,
    EngineFault,
    EngineOverloaded,
    EngineStopped,
    InvalidRequest,
)
from workers.engine.text.finish import FinishReason

pytestmark = pytest.mark.integration

MISUNDERSTOOD = [
    b"{no json", b"[]", b"{}", b'{"prompts": [7], "sampling": {}}',
    b'{"prompts": [[7]], "sampling": {"of_another_version": 1}}',
    b'{"prompts": [[7]], "sampling": {"logit_bias": []}}',
    b'{"prompts": [[7]], "sampling": {"n": 1.5}}',
    b'{"prompts": [[7]], "sampling": {}, "of_another_version": 1}',
]  # fmt: skip
"""Requests of jobs as another version may have written them."""


async def test_errors_of_one_job_end_it_alone(bench, submit):
    await submit("bad")
    await submit("good")
    bench.run("bad")
    bench.run("good")
    eventually(lambda: len(bench.engine.requests) == 2)
    bench.engine.fail("bad", DeadlineExceeded())
    bench.engine.tokens("good", [5], FinishReason.STOP)
    eventually(lambda: len(bench.acknowledged) == 2)
    assert bench.events("bad")[-1].error.code == "generation_timeout"
    assert bench.state("good") == "completed"


async def test_a_refused_or_malformed_job_fails(bench, submit, redis_client):
    bench.engine.refuse = InvalidRequest("too long")
    await submit("refused")
    bench.run("refused")
    eventually(lambda: bench.acknowledged == ["refused"])
    assert bench.events("refused")[-1].error.code == "invalid_value"


@pytest.mark.parametrize("request_bytes", MISUNDERSTOOD)
async def test_an_unreadable_record_fails_its_job_alone(bench, submit, redis_client, request_bytes):
    """The relay has done nothing before: one that looks for more jobs may claim this one whole."""
    await submit("malformed")
    redis_client.hset(f"{PREFIX}job:malformed", "request", request_bytes)
    bench.run("malformed")
    eventually(lambda: bench.acknowledged == ["malformed"])
    error = bench.events("malformed")[-1].error
    assert error.code == "worker_error"
    assert error.message.startswith("Malformed job: ")
    await submit("good")
    bench.run("good")
    bench.started()
    assert not bench.broken


@pytest.mark.parametrize(
    "event",
    [b"{no json", b"{}", b'{"s": 1}', b'{"s": 1, "c": [[0, [5], "5 "]]}', b'{"s": 1, "c": 5}'],
)
async def test_events_that_cannot_be_understood_fail_their_job_alone(
    valkey, bench, submit, redis_client, event
):
    """The events are those of an attempt by another version's worker."""
    await submit()
    dead = Execution(JobStore(redis_client, PREFIX), "dead")
    dead.beat("m", {})
    dead.claim(["job"])
    redis_client.delete(f"{PREFIX}worker:dead")
    redis_client.xadd(f"{PREFIX}ev:job", {b"d": event})
    bench.run()
    eventually(lambda: bench.acknowledged == ["job"])
    error = bench.client.hget(f"{PREFIX}job:job", "error")
    assert b"worker_error" in error
    assert b"Malformed job" in error
    assert not bench.broken


@pytest.mark.parametrize(
    "name", ["deadline", "kind", "seq", "key", "organization", "ttl", "request"]
)
async def test_a_record_that_is_no_jobs_is_dropped(bench, submit, redis_client, name):
    """Such a record is another version's, or incomplete. No client waits for it."""
    await submit("half")
    redis_client.hdel(f"{PREFIX}job:half", name)
    bench.run("half")
    eventually(lambda: bench.acknowledged == ["half"])
    assert not bench.client.zscore(f"{PREFIX}open", "half")
    await submit("good")
    bench.run("good")
    bench.started()
    assert not bench.broken


async def test_a_job_of_a_dead_worker_goes_on_where_it_was(valkey, bench, submit, redis_client):
    await submit()
    first = Execution(JobStore(redis_client, PREFIX), "dead")
    first.beat("m", {})
    (claim,) = first.claim(["job"])
    choices = [ChoiceEvent(0, [5, 6], "5 6 ", None, None), ChoiceEvent(1, [8], "", "stop")]
    step = StepEvent("job", claim.attempt, 1, choices)
    first.publish([step], [])
    redis_client.delete(f"{PREFIX}worker:dead")
    bench.run()
    bench.started()
    request = bench.engine.requests["job"]
    assert (request.published, request.published_ends) == ({0: (5, 6), 1: (8,)}, {1})
    bench.engine.tokens("job", [7], FinishReason.LENGTH)
    eventually(lambda: bench.acknowledged)
    choices = [choice for step in bench.events()[:-1] for choice in step]
    assert [choice.sequence_number for choice in choices] == [1, 2, 3]
    assert "".join(choice.text for choice in choices) == "5 6 7 "


async def test_stopping_gives_jobs_back(bench, submit, redis_client):
    await submit()
    bench.run()
    bench.started()
    bench.engine.tokens("job", [5])
    bench.relay.stop()
    assert bench.state() == "queued"
    assert bench.acknowledged == []  # Celery delivers it again
    assert len(bench.events()) == 1  # what was produced is kept
    assert not redis_client.exists(f"{PREFIX}worker:worker-1")


async def test_a_broken_engine_gives_jobs_back_and_ends_the_worker(bench, submit, redis_client):
    await submit()
    bench.run()
    bench.started()
    bench.engine.fail("job", EngineFault("CUDA error"))
    bench.engine.on_fatal(RuntimeError("CUDA error"))
    eventually(lambda: bench.broken)
    assert bench.state() == "queued"
    assert redis_client.hget(f"{PREFIX}job:job", "losses") == b"1"


@pytest.mark.parametrize("refusal", [EngineStopped(), EngineOverloaded()])
async def test_a_job_that_the_broken_engine_never_took_goes_back_without_a_loss(
    bench, submit, redis_client, refusal
):
    """An engine refuses requests from its failure on, a moment before the relay hears of it."""
    bench.engine.refuse = refusal
    await submit()
    bench.run()
    eventually(lambda: bench.engine.refused)
    bench.engine.on_fatal(RuntimeError("CUDA error"))
    eventually(lambda: bench.broken)
    assert bench.state() == "queued"
    assert redis_client.hget(f"{PREFIX}job:job", "losses") in (None, b"0")


async def test_a_request_that_the_engine_cannot_take_fails_alone(bench, submit):
    bench.engine.refuse = TypeError("a processor's factory has a bug")
    await submit("bad")
    bench.run("bad")
    eventually(lambda: bench.acknowledged == ["bad"])
    assert bench.events("bad")[-1].error.code == "internal_error"
    bench.engine.refuse = None
    await submit("good")
    bench.run("good")
    bench.started()
    assert not bench.broken


async def test_a_worker_ends_though_it_cannot_give_its_jobs_back(bench, submit, monkeypatch):
    await submit()
    bench.run()
    bench.started()

    def fail(jobs, lost):
        raise ValueError("a bug")

    monkeypatch.setattr(bench.relay.execution, "release", fail)
    bench.engine.on_fatal(RuntimeError("CUDA error"))
    eventually(lambda: bench.broken)


async def test_output_waits_while_redis_is_away_and_is_written_once(
    bench, submit, monkeypatch, redis_client
):
    await submit()
    bench.run()
    bench.started()
    execution = bench.relay.execution
    real, failures = execution.publish, iter([True, False, True])

    def flaky(steps, endings):
        """Fail before Redis has done the work, and then after."""
        after = next(failures, None)
        if after is None:
            return real(steps, endings)
        if after:
            real(steps, endings)
        raise redis.ConnectionError("away")

    monkeypatch.setattr(execution, "publish", flaky)
    bench.engine.tokens("job", [5])
    bench.engine.tokens("job", [6])
    bench.engine.tokens("job", [7], FinishReason.STOP)
    eventually(lambda: bench.acknowledged)
    *steps, end = bench.events()
    assert [i for step in steps for choice in step for i in choice.token_ids] == [5, 6, 7]
    assert end.sequence_number == 4
    assert redis_client.xlen(f"{PREFIX}usage") == 1
