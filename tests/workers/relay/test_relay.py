"""The relay between a scripted engine and a real Redis: nothing lost, nothing twice."""

import time

import pytest

from completions.contract.usage import Usage
from completions.jobs import workers
from completions.jobs.connection import connect_async
from completions.jobs.events import EndEvent
from completions.jobs.store import JobStore
from completions.jobs.workers import list_workers, read_metrics_pages
from tests.workers.relay.bench import PREFIX, SAMPLING, Bench, eventually
from workers import live_job, relay
from workers.engine.core.output import RequestOutput
from workers.engine.exceptions import (
    DeadlineExceeded,
    EngineOverloaded,
)
from workers.engine.text.finish import FinishReason

pytestmark = pytest.mark.integration


async def test_tokens_become_events_and_the_end_acknowledges(bench, submit):
    await submit()
    bench.run()
    bench.started()
    request = bench.engine.requests["job"]
    assert request.prompts == ((1, 2),)
    assert request.sampling == SAMPLING
    assert request.sampling.logit_bias == {5: 1.5}
    bench.engine.tokens("job", [5])
    bench.engine.tokens("job", [6], FinishReason.STOP)
    eventually(lambda: bench.acknowledged == ["job"])
    *steps, end = bench.events()
    choices = [choice for step in steps for choice in step]
    assert [choice.token_ids for choice in choices] == [[5], [6]]
    assert [choice.sequence_number for choice in choices] == [1, 2]
    assert choices[-1].finish_reason == "stop"
    assert end == EndEvent(3, "completed", None, Usage(2, 1, 0))
    assert bench.relay.wait_idle(5)
    page = bench.relay.metrics.page().decode()
    assert "quire_time_to_first_token_seconds_count 1.0" in page
    assert "quire_inter_token_latency_seconds_count 1.0" in page


@pytest.mark.parametrize("kind", ["sync", "batch"])
async def test_tokens_that_nobody_watches_are_published_together(bench, submit, monkeypatch, kind):
    monkeypatch.setattr(relay, "POLL_INTERVAL", 3600.0)
    await submit.submission.renew_lease()
    bench.relay.execution.beat("m", {})
    await submit(kind=kind)
    bench.run()
    bench.started()
    bench.engine.tokens("job", [5])  # the first look at the clock is past any interval
    bench.engine.tokens("job", [6])
    bench.engine.tokens("job", [7])
    bench.engine.tokens("job", [8], FinishReason.STOP)
    eventually(lambda: bench.acknowledged == ["job"])
    *steps, end = bench.events()
    assert len(steps) <= 2
    choices = [choice for step in steps for choice in step]
    assert [choice.sequence_number for choice in choices] == list(range(1, len(choices) + 1))
    assert [i for choice in choices for i in choice.token_ids] == [5, 6, 7, 8]
    assert "".join(choice.text for choice in choices) == "5 6 7 8 "
    assert choices[-1].finish_reason == "stop"
    assert end.sequence_number == len(choices) + 1


@pytest.mark.parametrize("kind", ["sync", "batch", "background"])
async def test_tokens_that_nobody_watches_are_stored_less_often_than_redis_is_asked(
    bench, submit, monkeypatch, kind
):
    monkeypatch.setattr(relay, "POLL_INTERVAL", 0.01)
    monkeypatch.setattr(live_job, "UNWATCHED_INTERVAL", 3600.0)
    outputs, send = [], bench.relay.execution.send
    monkeypatch.setattr(
        bench.relay.execution, "send", lambda output: outputs.append(output) or send(output)
    )
    await submit.submission.renew_lease()
    bench.relay.execution.beat("m", {})
    await submit(kind=kind)
    bench.run()
    bench.started()
    bench.engine.tokens("job", [5])
    eventually(lambda: len(bench.events()) == (kind == "background"))
    bench.engine.tokens("job", [6])
    asked = len(outputs)
    eventually(lambda: len(outputs) > asked + 3)
    assert len(bench.events()) == (2 if kind == "background" else 0)
    monkeypatch.setattr(live_job, "UNWATCHED_INTERVAL", 0.0)
    eventually(lambda: sum(map(len, bench.events())) == (2 if kind == "background" else 1))
    await submit.submission.cancel("job")
    eventually(lambda: bench.acknowledged == ["job"])
    assert bench.state() == "cancelled"


async def test_watched_tokens_are_published_as_many_at_once_as_the_interval_says(
    valkey, redis_client, submit, monkeypatch
):
    monkeypatch.setattr(relay, "POLL_INTERVAL", 3600.0)
    bench = Bench(valkey.url, stream_interval=3)

    async def turn(name):
        """Wait until the relay has done all that was waiting."""
        for again in (1, 2):
            await submit(f"{name}-{again}")
            bench.run(f"{name}-{again}")
            eventually(lambda again=again: f"{name}-{again}" in bench.engine.requests)

    def ids():
        return [[i for choice in step for i in choice.token_ids] for step in bench.events()]

    await submit()
    bench.run()
    bench.started()
    await turn("claimed")
    bench.engine.tokens("job", [5])
    eventually(lambda: ids() == [[5]])
    bench.engine.tokens("job", [6])
    bench.engine.tokens("job", [7])
    await turn("two")
    assert ids() == [[5]]
    bench.engine.tokens("job", [8])
    eventually(lambda: ids() == [[5], [6, 7, 8]])
    (joined,) = bench.events()[1]
    assert (joined.sequence_number, joined.text) == (2, "6 7 8 ")
    bench.engine.tokens("job", [9])
    await turn("one")
    bench.relay.stop()
    assert ids() == [[5], [6, 7, 8], [9]]  # a worker that stops keeps nothing back
    bench.client.close()


async def test_tokens_that_nobody_watches_are_kept_by_a_worker_that_stops(
    bench, submit, monkeypatch
):
    monkeypatch.setattr(relay, "POLL_INTERVAL", 3600.0)
    await submit(kind="batch")
    bench.run()
    bench.started()
    for token in range(5, 9):
        bench.engine.tokens("job", [token])
    bench.relay.stop()
    assert bench.state() == "queued"
    ids = [i for step in bench.events() for choice in step for i in choice.token_ids]
    assert ids == [5, 6, 7, 8]


async def test_the_organization_reaches_the_engine(bench, submit):
    await submit()
    bench.run()
    bench.started()
    assert bench.engine.requests["job"].organization == "1"


async def test_jobs_wait_for_a_full_engine_and_keep_their_order(bench, submit):
    bench.engine.refuse = EngineOverloaded()
    for name in ("first", "cancelled", "late", "last"):
        await submit(name, seconds=0.5 if name == "late" else 60)
        bench.run(name)
    eventually(lambda: bench.engine.refused > 1)
    await submit.submission.cancel("cancelled")
    eventually(lambda: set(bench.acknowledged) == {"cancelled", "late"})
    bench.engine.refuse = None
    eventually(lambda: list(bench.engine.requests) == ["first", "last"])
    assert bench.events("late")[-1].error.code == "queue_timeout"
    assert bench.events("cancelled")[-1].state == "cancelled"
    assert [bench.events(name)[-1].usage for name in ("late", "cancelled")] == [None, None]
    entries = bench.client.xrange(f"{PREFIX}usage")
    assert [entry[b"usage"] for _, entry in entries] == [b"", b""]
    for name in ("first", "last"):
        bench.engine.tokens(name, [5], FinishReason.STOP)
    eventually(lambda: bench.state("first") == bench.state("last") == "completed")


async def test_what_the_payload_says_reaches_the_engine(bench, submit):
    await submit()
    fields = {
        "adapters": ("legal",),
        "priority": 7,
        "cache_salt": "s",
        "return_hidden_states": True,
    }
    await submit("adapted", **fields)
    bench.run()
    bench.run("adapted")
    eventually(lambda: len(bench.engine.requests) == 2)
    assert bench.engine.requests["job"].adapters is None
    adapted = bench.engine.requests["adapted"]
    assert (adapted.adapters, adapted.priority, adapted.cache_salt) == (("legal",), 14, "s")
    assert (adapted.return_hidden_states, adapted.return_routed_experts) == (True, False)


async def test_the_priority_reaches_the_engine(bench, submit):
    await submit()
    await submit("line", kind="batch", priority=-1_000_000)
    bench.relay.execution.beat("m", {})
    await submit("call", kind="sync")
    await submit("urgent", priority=1)
    bench.run()
    eventually(lambda: len(bench.engine.requests) == 4)
    priorities = [bench.engine.requests[n].priority for n in ("line", "job", "call", "urgent")]
    assert priorities == [-2_000_000, 0, 1, 2]  # what a client waits for goes before equals
    assert list(bench.engine.requests) == ["urgent", "call", "job", "line"]


async def test_the_engine_knows_who_waits_for_a_jobs_tokens(bench, submit):
    kinds = {"stream": "tokens", "sync": "answer", "background": "answer", "batch": "nobody"}
    bench.relay.execution.beat("m", {})
    for kind in kinds:
        await submit(kind, kind=kind)
    bench.run("stream")
    eventually(lambda: len(bench.engine.requests) == 4)
    assert {kind: bench.engine.requests[kind].audience for kind in kinds} == kinds


async def test_it_takes_jobs_of_which_another_worker_has_the_message(bench, submit):
    await submit()
    bench.start()
    bench.started()
    bench.engine.tokens("job", [5], FinishReason.STOP)
    eventually(lambda: bench.state() == "completed")
    assert bench.acknowledged == []


async def test_a_worker_that_stops_leaves_waiting_jobs_to_others(bench, submit):
    bench.start()
    assert bench.relay.wait_idle(60)
    await submit()
    bench.run()
    eventually(lambda: bench.acknowledged == ["job"])
    assert bench.state() == "queued"
    assert not bench.engine.requests


async def test_a_worker_full_of_bytes_leaves_jobs_to_others(valkey, redis_client, submit):
    """But it takes one job of each organization that has none here."""
    full, other = (Bench(valkey.url, f"worker-{n}", max_held_bytes=1) for n in (1, 2))
    for name in ("first", "second", "third"):
        await submit(name)
    await submit("guest", organization=2)
    for name in ("first", "second", "third", "guest"):
        full.run(name)
    eventually(lambda: set(full.engine.requests) == {"first", "guest"})
    other.start()
    eventually(lambda: list(other.engine.requests) == ["second"])
    eventually(lambda: full.acknowledged == ["second"])  # it runs elsewhere
    assert full.state("third") == "queued"
    full.engine.tokens("first", [5], FinishReason.STOP)
    full.engine.tokens("guest", [5], FinishReason.STOP)
    eventually(lambda: "third" in full.engine.requests)
    for bench in (full, other):
        bench.relay.stop()
        bench.client.close()


async def test_a_message_delivered_again_while_its_job_runs_is_acknowledged_with_it(bench, submit):
    await submit()
    bench.run()
    bench.started()
    bench.run()
    bench.engine.tokens("job", [5], FinishReason.LENGTH)
    eventually(lambda: bench.acknowledged == ["job", "job"])
    assert len(bench.engine.requests) == 1


async def test_a_cancelled_job_stops_and_pays_for_what_it_had(bench, submit):
    await submit()
    bench.run()
    bench.started()
    bench.engine.tokens("job", [5, 6])
    eventually(bench.events)
    await submit.submission.cancel("job")
    eventually(lambda: bench.acknowledged)  # although the engine says nothing
    assert bench.engine.aborted == ["job"]
    assert bench.events()[-1] == EndEvent(2, "cancelled", None, Usage(2, 2, 0))


async def test_a_cancelled_job_pays_for_what_the_cache_held_as_such(bench, submit, redis_client):
    """It also pays for candidates of `best_of`, which no client has seen."""
    await submit()
    redis_client.hset(f"{PREFIX}job:job", "prices", "[10, 1, 100]")
    bench.run()
    bench.started()
    bench.engine.used = Usage(prompt_tokens=2, cached_tokens=1, completion_tokens=4)
    await submit.submission.cancel("job")
    eventually(lambda: bench.acknowledged)
    assert bench.events()[-1].usage == Usage(2, 4, cached_tokens=1)
    (entry,) = bench.client.xrange(f"{PREFIX}usage")
    assert entry[1][b"cost"] == b"411"


async def test_a_failed_job_pays_for_what_the_cache_held_as_such(bench, submit):
    await submit()
    bench.run()
    bench.started()
    used = Usage(prompt_tokens=2, cached_tokens=1, completion_tokens=3)
    bench.engine.on_outputs([RequestOutput("job", [], True, DeadlineExceeded(), used)])
    eventually(lambda: bench.acknowledged)
    assert bench.events()[-1].usage == Usage(2, 3, cached_tokens=1)


async def test_it_learns_of_a_drain_and_says_that_it_follows(bench, redis_client, valkey):
    workers.drain(JobStore(redis_client, PREFIX), "worker-1")
    bench.start()
    eventually(lambda: bench.relay.drain_wanted)
    bench.relay.accepting = False  # as whoever consumes messages does
    eventually(lambda: not workers.list_workers_sync(JobStore(redis_client, PREFIX))[0].accepting)
    workers.resume(JobStore(redis_client, PREFIX), "worker-1")
    eventually(lambda: not bench.relay.drain_wanted)


def test_a_worker_is_seen_as_soon_as_it_starts(bench, monkeypatch):
    monkeypatch.setattr(relay, "BEAT_INTERVAL", 600.0)
    bench.run()
    eventually(lambda: bench.client.smembers(f"{PREFIX}workers"))


async def test_the_heartbeat_has_the_counters_of_the_engine(bench, submit, valkey):
    await submit()
    bench.run()
    bench.started()
    async with connect_async(valkey.url) as client:
        deadline = time.monotonic() + 120
        while not (found := await list_workers(JobStore(client, PREFIX))):
            assert time.monotonic() < deadline
        [worker] = found
        (page,) = await read_metrics_pages(JobStore(client, PREFIX))
    assert "quire_generation_tokens_total 50.0" in page.text
    assert worker.model == "m"
    assert worker.facts["generated_tokens"] == 50
    assert worker.facts["forced_tokens"] == 20
    assert {"running", "waiting", "jobs", "preemptions", "prefix_cache_hits"} <= set(worker.facts)
