"""The multiplexed reader against a real server: nothing missed, nothing twice."""

import asyncio

import pytest

from completions.jobs import events
from completions.jobs.events import ChoiceEvent, EndEvent
from completions.jobs.reading import follow, follower
from completions.jobs.reading.blocking_requests import ReaderLostError
from completions.jobs.reading.follow import EventReader
from tests.running import until

pytestmark = pytest.mark.integration


@pytest.fixture
async def following(valkey, redis_client):
    changed = asyncio.Event()
    event_reader = EventReader(valkey.url, "t:", "web-1", changed.set)
    event_reader.changed = changed
    task = asyncio.create_task(event_reader.run())
    await read_a_key_change(event_reader, redis_client)  # it has begun
    changed.clear()
    yield event_reader
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await event_reader.close()


async def read_a_key_change(event_reader, client):
    async with asyncio.timeout(60):
        while not event_reader.changed.is_set():  # it may not have begun at the first change
            client.xadd("t:keys", {"d": b""})
            await asyncio.sleep(0.05)


async def joined(event_reader, *jobs):
    """Wait until followers have joined."""
    streams = {f"t:ev:{job}".encode() for job in jobs}
    await until(lambda: streams <= event_reader.streams)


def publish(client, job_id, first, last):
    for number in range(first, last + 1):
        data = events.encode_choices(number, [ChoiceEvent(0, [number], f"{number} ", None, None)])
        client.xadd(f"t:ev:{job_id}", {"d": data})


def finish(client, job_id, number):
    client.xadd(f"t:ev:{job_id}", {"d": events.encode_end(number, "completed", None, None)})


async def numbers(event_reader, job_id, seen=None):
    seen = [] if seen is None else seen
    async for event in event_reader.follow(job_id):
        if isinstance(event, EndEvent):
            seen.append(event.sequence_number)
        else:
            seen += [choice.sequence_number for choice in event]
    return seen


async def test_followers_that_come_early_late_and_between_see_everything(following, redis_client):
    early = asyncio.create_task(numbers(following, "job"))
    await joined(following, "job")
    publish(redis_client, "job", 1, 50)
    await asyncio.sleep(0.05)
    between = asyncio.create_task(numbers(following, "job"))
    publish(redis_client, "job", 51, 100)
    finish(redis_client, "job", 101)
    assert await early == list(range(1, 102))
    assert await between == list(range(1, 102))
    assert await numbers(following, "job") == list(range(1, 102))


async def test_many_streams_at_once(following, redis_client):
    jobs = [f"job-{number}" for number in range(40)]
    tasks = [asyncio.create_task(numbers(following, job)) for job in jobs]
    await joined(following, *jobs)
    for number in range(1, 11):
        for job in jobs:
            publish(redis_client, job, number, number)
        await asyncio.sleep(0)
    for job in jobs:
        finish(redis_client, job, 11)
    assert await asyncio.gather(*tasks) == [list(range(1, 12))] * len(jobs)
    assert following.streams == {b"t:ctl:web-1", b"t:keys"}


async def test_an_expected_job_is_read_without_a_wake_of_its_followers(following, redis_client):
    """Its maker wakes the XREAD, as submit.lua does."""
    following.expect("job")
    redis_client.xadd("t:ctl:web-1", {"d": b""})
    publish(redis_client, "job", 1, 3)
    await asyncio.sleep(0.05)  # the reader may have gone past them by now
    publish(redis_client, "job", 4, 5)
    finish(redis_client, "job", 6)
    assert await numbers(following, "job") == list(range(1, 7))
    assert redis_client.xlen("t:ctl:web-1") == 1
    assert following.streams == {b"t:ctl:web-1", b"t:keys"}


async def test_streams_without_a_follower_are_forgotten(following, redis_client, monkeypatch):
    monkeypatch.setattr(follow, "EXPECTED", 0.01)
    following.expect("refused")
    following.forget("refused")
    following.expect("hung-up")
    followed = asyncio.create_task(numbers(following, "followed"))
    await asyncio.sleep(0)
    following.expect("followed")
    async with asyncio.timeout(30):
        while len(following.streams) > 3:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)
    publish(redis_client, "followed", 1, 1)
    finish(redis_client, "followed", 2)
    assert await followed == [1, 2]


async def test_a_slow_follower_catches_up_by_itself(following, redis_client, monkeypatch):
    monkeypatch.setattr(follower, "BACKLOG", 5)
    stream = following.follow("job")
    publish(redis_client, "job", 1, 1)
    seen = [(await anext(stream))[0].sequence_number]
    publish(redis_client, "job", 2, 60)  # far more than its queue holds
    await asyncio.sleep(0.2)
    publish(redis_client, "job", 61, 70)
    finish(redis_client, "job", 71)
    async for event in stream:
        seen += [71] if isinstance(event, EndEvent) else [event[0].sequence_number]
    assert seen == list(range(1, 72))


async def test_silence_is_reported_and_no_event_is_lost(following, redis_client):
    seen = []
    async for event in following.follow("job", patience=0.02):
        seen.append(event)
        if event is None and len(seen) == 2:
            publish(redis_client, "job", 1, 2)
        elif event is None and len(seen) > 4:
            finish(redis_client, "job", 3)
    assert seen[:2] == [None, None]
    events = [event for event in seen if event is not None]
    assert [event[0].sequence_number for event in events[:-1]] == [1, 2]
    assert events[-1].sequence_number == 3
    assert None in seen[4:]


async def test_a_key_change_is_heard(following, redis_client):
    await read_a_key_change(following, redis_client)


async def test_followers_learn_at_once_that_redis_has_gone(tmp_path_factory):
    from tests.conftest import PrivateValkey

    server = PrivateValkey(tmp_path_factory.mktemp("v"))
    server.start()
    event_reader = EventReader(server.url, "t:", "web-1", lambda: None)
    task = asyncio.create_task(event_reader.run())
    follower = asyncio.create_task(numbers(event_reader, "job"))
    await asyncio.sleep(0.1)
    server.stop()
    async with asyncio.timeout(60):
        with pytest.raises(ReaderLostError):
            await follower
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await event_reader.close()


async def test_followers_learn_soon_that_redis_was_emptied(following, redis_client, monkeypatch):
    monkeypatch.setattr(follow, "CHECK_INTERVAL", 0.02)
    watching = asyncio.create_task(following.watch())
    for job_id in ("kept", "lost"):
        redis_client.hset(f"t:job:{job_id}", "state", "running")
        publish(redis_client, job_id, 1, 2)
    kept, lost = (asyncio.create_task(numbers(following, name)) for name in ("kept", "lost"))
    redis_client.delete("t:job:lost", "t:ev:lost")
    with pytest.raises(ReaderLostError):
        async with asyncio.timeout(60):
            await lost
    finish(redis_client, "kept", 3)
    assert await kept == [1, 2, 3]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


def count_listeners(client):
    return client.execute_command("PUBSUB", "SHARDNUMSUB", "t:ctl:web-1")[1]


@pytest.fixture(params=["channel", "control stream"])
async def heard_on(request, following, redis_client):
    """How lines come: the control stream has them while nobody listens."""
    await until(lambda: count_listeners(redis_client) == 1)
    if request.param == "channel":
        return lambda lines: redis_client.execute_command("SPUBLISH", "t:ctl:web-1", lines)
    return lambda lines: redis_client.xadd("t:ctl:web-1", {"s": lines})


def show(heard_on, *lines):
    """Show what streams gained: job, first and last number."""
    made = []
    for job_id, first, last in lines:
        for number in range(first, last + 1):
            gains = events.encode_gains([ChoiceEvent(0, [number], f"{number} ")])
            made.append(events.encode_line(job_id, 1, number, 1, 1, gains))
    heard_on(events.join_lines(made))


def show_end(heard_on, job_id, number):
    end = events.encode_end(number, "completed", None, None)
    heard_on(b'["%b",1,0,0,0,%b,"7-0"]' % (job_id.encode(), end))


async def test_lines_of_many_streams_come_in_one_entry(following, redis_client, heard_on):
    jobs = [f"job-{number}" for number in range(20)]
    tasks = [asyncio.create_task(numbers(following, job)) for job in jobs]
    await joined(following, *jobs)
    for number in range(1, 11):
        show(heard_on, *((job, number, number) for job in jobs))
    await until(lambda: following.streams == {b"t:ctl:web-1", b"t:keys"})
    for job in jobs:
        publish(redis_client, job, 1, 10)  # it is stored too, and not read
        show_end(heard_on, job, 11)
    assert await asyncio.gather(*tasks) == [list(range(1, 12))] * len(jobs)


async def test_a_gap_between_lines_is_read_from_the_jobs_stream(following, redis_client, heard_on):
    seen = []
    following_it = asyncio.create_task(numbers(following, "job", seen))
    await joined(following, "job")
    publish(redis_client, "job", 1, 1)
    await until(lambda: seen == [1])
    show(heard_on, ("job", 2, 3))
    await until(lambda: b"t:ev:job" not in following.streams)
    show(heard_on, ("job", 6, 7))
    await until(lambda: b"t:ev:job" in following.streams)
    publish(redis_client, "job", 2, 6)
    show(heard_on, ("job", 7, 8))
    show_end(heard_on, "job", 9)
    publish(redis_client, "job", 7, 8)
    finish(redis_client, "job", 9)
    assert await following_it == list(range(1, 10))


async def test_followers_that_come_while_others_hear_lines_see_everything(
    following, redis_client, heard_on
):
    early = asyncio.create_task(numbers(following, "job"))
    await joined(following, "job")
    publish(redis_client, "job", 1, 1)
    late = []
    for number in range(2, 40):
        show(heard_on, ("job", number, number))
        if number % 4 == 0:
            publish(redis_client, "job", max(2, number - 3), number)
        if number % 5 == 0:
            late.append(asyncio.create_task(numbers(following, "job")))
        await asyncio.sleep(0.005)
    publish(redis_client, "job", 37, 39)
    show_end(heard_on, "job", 40)
    finish(redis_client, "job", 40)
    assert await early == list(range(1, 41))
    assert await asyncio.gather(*late) == [list(range(1, 41))] * len(late)


async def test_a_job_that_goes_on_without_lines_is_read_again(
    following, redis_client, heard_on, monkeypatch
):
    """A worker of an earlier version has taken it."""
    monkeypatch.setattr(follow, "CHECK_INTERVAL", 0.02)
    watching = asyncio.create_task(following.watch())
    redis_client.hset("t:job:job", mapping={"state": "running", "seq": 3})
    seen = []
    followed = asyncio.create_task(numbers(following, "job", seen))
    await joined(following, "job")
    publish(redis_client, "job", 1, 2)
    show(heard_on, ("job", 1, 2))
    await until(lambda: b"t:ev:job" not in following.streams)
    publish(redis_client, "job", 3, 4)
    redis_client.hset("t:job:job", "seq", 5)
    await until(lambda: seen == [1, 2, 3, 4])  # a line before that would be a gap
    assert b"t:ev:job" in following.streams
    show(heard_on, ("job", 5, 5))
    await until(lambda: b"t:ev:job" not in following.streams)
    finish(redis_client, "job", 6)
    redis_client.hset("t:job:job", mapping={"state": "completed", "seq": 6})
    assert await followed == list(range(1, 7))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize("entry", [b"no JSON", b'{"s":1,"c":[]}'])
@pytest.mark.parametrize("line", [b"no JSON", b'["other",1,1,1,1]'])
async def test_an_entry_that_is_no_event_ends_its_own_stream_only(
    following, redis_client, heard_on, entry, line
):
    others = asyncio.create_task(numbers(following, "other"))
    broken = asyncio.create_task(numbers(following, "broken"))
    await joined(following, "other", "broken")
    redis_client.xadd("t:ev:broken", {"d": entry})
    with pytest.raises(ReaderLostError):
        await broken
    heard_on(line)
    publish(redis_client, "other", 1, 2)
    finish(redis_client, "other", 3)
    assert await others == [1, 2, 3]


async def test_what_is_lost_with_the_channel_is_read_from_the_jobs_streams(following, redis_client):
    await until(lambda: count_listeners(redis_client) == 1)
    seen = []
    followed = asyncio.create_task(numbers(following, "job", seen))
    await joined(following, "job")
    show(
        lambda lines: redis_client.execute_command("SPUBLISH", "t:ctl:web-1", lines), ("job", 1, 2)
    )
    await until(lambda: seen == [1, 2] and following.streams == {b"t:ctl:web-1", b"t:keys"})
    assert redis_client.execute_command("CLIENT", "KILL", "TYPE", "pubsub") == 1
    publish(redis_client, "job", 1, 4)  # what a worker showed meanwhile is stored later
    await until(lambda: seen == [1, 2, 3, 4])
    finish(redis_client, "job", 5)
    assert await followed == list(range(1, 6))
    await until(lambda: count_listeners(redis_client) == 1)


async def follow_by_writing(event_reader, job_id, log, write):
    """Follow a job as a stream does whose client reads: each step is made, and written later. What
    comes while the task does not wait is yielded to it."""

    def take(choices):
        log.append((job_id, "made", choices[0].sequence_number))
        event_reader.write_later(write, job_id.encode())
        return True

    async for event in event_reader.follow(job_id, take=take):
        if isinstance(event, EndEvent):
            return
        log.append((job_id, "yielded", event[0].sequence_number))


async def hear(log, count):
    """Wait until so many events were heard. Returns whether all were made, and so written."""
    await until(lambda: sum(what[1] in ("made", "yielded") for what in log) == count)
    return all(what[1] != "yielded" for what in log)


async def test_what_a_step_gained_is_made_for_all_streams_and_then_written(
    following, redis_client, heard_on
):
    log = []

    def write(part):
        log.append((part.decode(), "written"))
        if part == b"job-1":
            raise RuntimeError("its connection has ended")

    jobs = [f"job-{number}" for number in range(3)]
    tasks = [asyncio.create_task(follow_by_writing(following, job, log, write)) for job in jobs]
    await joined(following, *jobs)
    for number in range(1, 100):
        log.clear()
        show(heard_on, *((job, number, number) for job in jobs))
        if await hear(log, len(jobs)):
            break
    assert log == [
        *((job, "made", number) for job in jobs),
        *((job, "written") for job in jobs),
    ]
    for job in jobs:
        show_end(heard_on, job, number + 1)
    await asyncio.gather(*tasks)


async def test_what_a_stored_entry_has_is_written_too(following, redis_client):
    log = []

    def write(part):
        log.append((part.decode(), "written"))

    task = asyncio.create_task(follow_by_writing(following, "job", log, write))
    await joined(following, "job")
    for number in range(1, 100):
        log.clear()
        publish(redis_client, "job", number, number)
        if await hear(log, 1):
            break
    assert log == [("job", "made", number), ("job", "written")]
    finish(redis_client, "job", number + 1)
    await task
