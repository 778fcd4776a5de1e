"""Calls that wait for the end of their jobs, against a real server."""

import asyncio

import pytest

from completions.contract.usage import Usage
from completions.jobs import events
from completions.jobs.events import ChoiceEvent, EndEvent
from completions.jobs.execute import Ending, StepEvent
from completions.jobs.micro_batcher import MicroBatcher
from completions.jobs.new_job import IdempotencyKey
from completions.jobs.reading import blocking_requests
from completions.jobs.reading.blocking_requests import ReaderLostError
from completions.jobs.reading.follow import EventReader
from tests.completions.jobs.job_making import PREFIX, new_job

pytestmark = pytest.mark.integration

CONTROL = f"{PREFIX}ctl:web-1"


@pytest.fixture
def frequent_looks(monkeypatch):
    """Requested before `reading`, whose first look would otherwise be a second away."""
    monkeypatch.setattr(blocking_requests, "POLL_INTERVAL", 0.05)


@pytest.fixture
async def reading(valkey, redis_client):
    event_reader = EventReader(valkey.url, PREFIX, "web-1", lambda: None)
    tasks = [asyncio.create_task(event_reader.run())]
    tasks.append(asyncio.create_task(event_reader.blocking_requests.watch()))
    yield event_reader
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await event_reader.close()


def run(worker, job_id, steps, text="-"):
    """From the claim to the end, a token per step."""
    (claim,) = worker.claim([job_id])
    for number in range(1, steps + 1):
        choices = [ChoiceEvent(0, [number], text, None, None)]
        worker.publish([StepEvent(job_id, claim.attempt, number, choices)], [])
    end = Ending(job_id, claim.attempt, steps + 1, "completed", None, Usage(2, steps))
    assert worker.publish([], [end])[1] == [True]


async def result(event_reader, job_id):
    async with asyncio.timeout(10):
        return await event_reader.blocking_requests.wait_for_result(job_id)


def numbers(read):
    return [each.sequence_number if isinstance(each, EndEvent) else each[0].sequence_number
            for each in read]  # fmt: skip


async def test_many_calls_have_their_results_when_they_end(reading, submission, worker):
    ids = [f"cmpl-{number}" for number in range(20)]
    for job_id in ids:
        reading.blocking_requests.expect(job_id)
        await submission.submit(new_job(job_id, "sync"))
    run(worker, ids[0], 2)  # before anybody waits
    waiting = [asyncio.create_task(result(reading, job_id)) for job_id in ids]
    await asyncio.sleep(0)
    for number, job_id in enumerate(ids[1:], 1):
        run(worker, job_id, number)
    steps = [2, *range(1, 20)]
    found = await asyncio.gather(*waiting)
    assert [numbers(read) for read in found] == [list(range(1, last + 2)) for last in steps]
    assert found[0][-1] == EndEvent(3, "completed", None, Usage(2, 2))
    assert len(reading.blocking_requests) == 0
    assert reading.streams == {CONTROL.encode(), b"t:keys"}  # their streams are not followed


async def test_a_long_result_is_read_in_pages(reading, submission, worker, monkeypatch):
    monkeypatch.setattr(blocking_requests, "PAGE_SIZE", 3)
    reading.blocking_requests.expect("cmpl-1")
    await submission.submit(new_job(kind="sync"))
    run(worker, "cmpl-1", 70)
    assert numbers(await result(reading, "cmpl-1")) == list(range(1, 72))


async def test_cancelling_a_queued_call_ends_it(reading, submission, worker):
    reading.blocking_requests.expect("cmpl-1")
    await submission.submit(new_job(kind="sync"))
    await submission.cancel("cmpl-1")
    (end,) = await result(reading, "cmpl-1")
    assert end.state == "cancelled"


async def test_an_unannounced_end_is_found(
    frequent_looks, reading, submission, worker, redis_client
):
    """A worker of an older version writes the same, but for the word to the web process."""
    reading.blocking_requests.expect("cmpl-1")
    await submission.submit(new_job(kind="sync"))
    waiting = asyncio.create_task(result(reading, "cmpl-1"))
    await asyncio.sleep(0.2)
    assert not waiting.done()  # it was looked at, and has not ended
    end = events.encode_end(1, "completed", None, None)
    redis_client.xadd(f"{PREFIX}ev:cmpl-1", {"d": end})
    redis_client.hset(f"{PREFIX}job:cmpl-1", "state", "completed")
    assert numbers(await waiting) == [1]


async def test_calls_learn_soon_that_redis_was_emptied(
    valkey, submission, worker, redis_client, monkeypatch
):
    monkeypatch.setattr(blocking_requests, "POLL_INTERVAL", 0.02)
    reading = EventReader(valkey.url, PREFIX, "web-1", lambda: None)
    reading.blocking_requests.expect("early")  # not submitted yet
    reading.blocking_requests.expect("cmpl-1")
    await submission.submit(new_job(kind="sync"))
    waiting = asyncio.create_task(result(reading, "cmpl-1"))
    watching = asyncio.create_task(reading.blocking_requests.watch())
    redis_client.delete(f"{PREFIX}job:cmpl-1")
    with pytest.raises(ReaderLostError):
        await waiting
    await submission.submit(new_job("early", "sync"))
    run(worker, "early", 1)
    assert numbers(await result(reading, "early")) == [1, 2]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await reading.close()


async def test_a_result_without_its_end_is_lost(reading, submission, worker, redis_client):
    reading.blocking_requests.expect("cmpl-1")
    await submission.submit(new_job(kind="sync"))
    redis_client.xadd(CONTROL, {"d": "cmpl-1"})
    with pytest.raises(ReaderLostError):
        await result(reading, "cmpl-1")


async def test_a_call_whose_client_hangs_up_is_forgotten(reading):
    reading.blocking_requests.expect("cmpl-1")
    waiting = asyncio.create_task(result(reading, "cmpl-1"))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    reading.blocking_requests.expect("cmpl-2")
    reading.blocking_requests.forget("cmpl-2")
    assert len(reading.blocking_requests) == 0


async def test_calls_learn_at_once_that_redis_has_gone(tmp_path_factory):
    from tests.conftest import PrivateValkey

    server = PrivateValkey(tmp_path_factory.mktemp("v"))
    server.start()
    event_reader = EventReader(server.url, PREFIX, "web-1", lambda: None)
    task = asyncio.create_task(event_reader.run())
    event_reader.blocking_requests.expect("cmpl-1")
    waiting = asyncio.create_task(result(event_reader, "cmpl-1"))
    await asyncio.sleep(0.1)
    server.stop()
    async with asyncio.timeout(60):
        with pytest.raises(ReaderLostError):
            await waiting
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await event_reader.close()


async def test_the_process_is_woken_for_new_streams_and_ended_calls(
    submission, worker, redis_client
):
    kept = IdempotencyKey("/v1/completions", "once", "digest")
    await submission.submit(new_job("cmpl-stream", "stream"))
    assert redis_client.xlen(CONTROL) == 1
    await submission.submit(new_job("cmpl-call", "sync"))
    await submission.submit(new_job("cmpl-kept", "sync", idempotency=kept))
    for job_id in ("cmpl-stream", "cmpl-call", "cmpl-kept"):
        run(worker, job_id, 1)
    entries = [entry for _, entry in redis_client.xrange(CONTROL)]
    assert [entry.get(b"d") for entry in entries] == [b"", None, b"cmpl-call"]
    assert entries[1][b"s"].startswith(b'["cmpl-stream",1,0,0,0,{')  # its end
    assert 0 < redis_client.ttl(CONTROL) <= 60


async def test_a_short_result_comes_with_the_word_of_it(reading, submission, worker, monkeypatch):
    async def unread(pages):
        raise AssertionError(pages)

    monkeypatch.setattr(reading.blocking_requests, "_pages", MicroBatcher(unread))
    for job_id, steps in (("cmpl-1", 1), ("cmpl-63", 63)):
        reading.blocking_requests.expect(job_id)
        await submission.submit(new_job(job_id, "sync"))
        run(worker, job_id, steps)
        assert numbers(await result(reading, job_id)) == list(range(1, steps + 2))


@pytest.mark.parametrize(("steps", "text"), [(64, "-"), (3, "-" * 8000)])
async def test_a_long_result_is_left_to_be_read(
    reading, submission, worker, redis_client, steps, text
):
    reading.blocking_requests.expect("cmpl-1")
    await submission.submit(new_job(kind="sync"))
    run(worker, "cmpl-1", steps, text)
    assert redis_client.xrange(CONTROL)[-1][1] == {b"d": b"cmpl-1"}
    assert numbers(await result(reading, "cmpl-1")) == list(range(1, steps + 2))


async def test_words_are_forgotten_soon(submission, worker, redis_client):
    redis_client.xadd(CONTROL, {"d": "x" * 5000}, id="1-1")  # a node of the stream to itself
    await submission.submit(new_job("cmpl-call", "sync"))
    run(worker, "cmpl-call", 1)
    assert [entry[b"d"] for _, entry in redis_client.xrange(CONTROL)] == [b"cmpl-call"]
