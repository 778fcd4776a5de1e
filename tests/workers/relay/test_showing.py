"""A stream's tokens: shown to its web process with each step, stored together."""

import pytest

from completions.jobs.events import EndEvent, decode_lines
from tests.workers.relay.bench import PREFIX, Bench, eventually
from workers import live_job, relay
from workers.engine.text.finish import FinishReason

pytestmark = pytest.mark.integration


@pytest.fixture
async def begin(bench, submit, monkeypatch):
    """Begins streams that the relay stores only if it must: it does not ask by itself any more."""
    await submit.submission.renew_lease()
    bench.relay.execution.beat("m", {})

    async def begin(*job_ids):
        for job_id in job_ids:
            await submit(job_id, kind="stream")
            bench.run(job_id)
            eventually(lambda job_id=job_id: job_id in bench.engine.requests)
            bench.engine.tokens(job_id, [1])
            eventually(lambda job_id=job_id: list_stored(bench, job_id) == [1])
        monkeypatch.setattr(relay, "POLL_INTERVAL", 3600.0)

    return begin


def list_stored(bench, job_id="job"):
    events = bench.events(job_id)
    return [i for step in events if isinstance(step, list) for each in step for i in each.token_ids]


def list_shown(bench, job_id="job"):
    found = []
    for _, fields in bench.client.xrange(f"{PREFIX}ctl:web-1"):
        for named, event in decode_lines(fields.get(b"s", b"")):
            if named == job_id:
                ends = isinstance(event, EndEvent)
                found += ["end"] if ends else [i for each in event for i in each.token_ids]
    return found


async def test_each_step_is_shown_and_all_is_stored_at_the_end(bench, begin):
    await begin("job")
    for token in (5, 6, 7):
        bench.engine.tokens("job", [token])
        eventually(lambda token=token: list_shown(bench)[-1] == token)
    assert list_stored(bench) == [1]
    bench.engine.tokens("job", [8], FinishReason.STOP)
    eventually(lambda: bench.acknowledged == ["job"])
    assert list_shown(bench) == [1, 5, 6, 7, 8, "end"]
    assert list_stored(bench) == [1, 5, 6, 7, 8]
    assert bench.events()[-1].sequence_number == 6


async def test_many_tokens_are_stored_before_the_next_question(bench, begin):
    await begin("job")
    for token in range(2, live_job.STORED_TOKENS + 1):
        bench.engine.tokens("job", [token])
        eventually(lambda token=token: list_shown(bench)[-1] == token)
    assert list_stored(bench) == [1]
    bench.engine.tokens("job", [99])
    eventually(lambda: len(list_stored(bench)) == live_job.STORED_TOKENS + 1)
    assert len(bench.events()) == 2


async def test_tokens_are_stored_after_a_while(bench, begin, monkeypatch):
    await begin("job")
    bench.engine.tokens("job", [5])
    eventually(lambda: list_shown(bench) == [1, 5])
    assert list_stored(bench) == [1]
    monkeypatch.setattr(relay, "POLL_INTERVAL", 0.01)
    bench.engine.tokens("job", [6])
    eventually(lambda: list_stored(bench) == [1, 5, 6])


async def test_a_worker_that_stops_stores_what_it_has_shown(bench, begin):
    await begin("job")
    bench.engine.tokens("job", [5])
    eventually(lambda: list_shown(bench) == [1, 5])
    bench.relay.stop()
    assert bench.state() == "queued"
    assert list_stored(bench) == [1, 5]


async def test_a_job_of_a_killed_worker_goes_on_after_what_was_shown(
    valkey, bench, begin, redis_client
):
    """Here the heartbeat is removed: the worker would come back, and finds its job taken."""
    await begin("job")
    for token in (5, 6):
        bench.engine.tokens("job", [token])
        eventually(lambda token=token: list_shown(bench)[-1] == token)
    redis_client.delete(f"{PREFIX}worker:worker-1")
    other = Bench(valkey.url, "worker-2")
    try:
        other.run("job")
        other.started()
        assert other.engine.requests["job"].published == {0: (1, 5, 6)}
        bench.engine.tokens("job", [7])  # the first worker still runs it
        eventually(lambda: bench.engine.aborted == ["job"])
        other.engine.tokens("job", [70], FinishReason.STOP)
        eventually(lambda: other.acknowledged == ["job"])
        assert list_shown(bench) == [1, 5, 6, 70, "end"]
        assert list_stored(bench) == [1, 5, 6, 70]
    finally:
        other.relay.stop()
        other.client.close()


async def test_a_cancelled_stream_stops_with_its_next_step(bench, begin, submit):
    await begin("job", "other")
    await submit.submission.cancel("job")
    bench.engine.tokens("other", [5])
    eventually(lambda: bench.acknowledged == ["job"])
    assert bench.engine.aborted == ["job"]
    eventually(lambda: list_shown(bench, "other") == [1, 5])
    bench.engine.tokens("other", [6])
    eventually(lambda: list_shown(bench, "other") == [1, 5, 6])
    assert list_shown(bench)[-1] == "end"


async def test_a_stream_that_nobody_reads_is_stored_at_each_step(bench, begin, redis_client):
    await begin("job")
    redis_client.hset(f"{PREFIX}job:job", "web", "")  # it goes on without its client
    redis_client.delete(f"{PREFIX}web:web-1")
    redis_client.set(f"{PREFIX}attention:worker-1", 1)  # whatever makes it ask
    bench.engine.tokens("job", [5])
    eventually(lambda: list_stored(bench) == [1, 5])
    bench.engine.tokens("job", [6])
    eventually(lambda: list_stored(bench) == [1, 5, 6])


async def test_all_is_stored_while_an_earlier_worker_lives(bench, begin, redis_client):
    await begin("job")
    redis_client.set(f"{PREFIX}storing", 1)
    bench.engine.tokens("job", [5])
    eventually(lambda: list_shown(bench) == [1, 5])
    bench.engine.tokens("job", [6])
    eventually(lambda: list_stored(bench) == [1, 5, 6])
    redis_client.delete(f"{PREFIX}storing")
    bench.engine.tokens("job", [7])
    eventually(lambda: list_stored(bench) == [1, 5, 6, 7])
    bench.engine.tokens("job", [8])
    eventually(lambda: list_shown(bench) == [1, 5, 6, 7, 8])
    assert list_stored(bench) == [1, 5, 6, 7]


async def test_what_has_nothing_to_show_leaves_steps_stored(bench, begin, submit, redis_client):
    """While an earlier worker lives, a batch without a stream's step says nothing of it."""
    await begin("job")
    redis_client.set(f"{PREFIX}storing", 1)
    bench.engine.tokens("job", [5])
    eventually(lambda: list_shown(bench) == [1, 5])
    bench.engine.tokens("job", [6])
    eventually(lambda: list_stored(bench) == [1, 5, 6])
    await submit("background")
    bench.run("background")
    eventually(lambda: "background" in bench.engine.requests)
    bench.engine.tokens("background", [1])
    eventually(lambda: list_stored(bench, "background") == [1])
    bench.engine.tokens("job", [7])
    eventually(lambda: list_stored(bench) == [1, 5, 6, 7])
