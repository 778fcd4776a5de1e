"""A client's place in a job's events: whatever comes twice or with a gap, it gets each once."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.jobs.events import ChoiceEvent, EndEvent
from completions.jobs.reading import follower as module
from completions.jobs.reading.blocking_requests import ReaderLostError
from completions.jobs.reading.follower import BehindError, Follower

END = EndEvent(9, "completed", None, None)


def gain(first, last=None):
    """The event of some numbers."""
    last = last or first
    return [ChoiceEvent(0, [n], "x", sequence_number=n) for n in range(first, last + 1)]


def list_numbers(events):
    return [choice.sequence_number for event in events for choice in event]


async def waiting(follower):
    """The task of a client that waits for the next event."""
    task = asyncio.create_task(follower.read(float("inf")))
    await asyncio.sleep(0)
    return task


async def test_what_comes_while_the_task_waits_is_taken_without_waking_it():
    taken = []
    follower = Follower(b"0", 1, lambda event: not taken.append(event))
    follower.offer_entry(b"1-0", gain(1))  # nothing waits for it yet
    assert taken == []
    assert list_numbers([await follower.read(1)]) == [1]
    task = await waiting(follower)
    assert follower.offer_line(gain(2))
    follower.offer_entry(b"2-0", gain(2, 3))
    await asyncio.sleep(0)
    assert list_numbers(taken) == [2, 3]
    assert not task.done()
    assert (follower.seen, follower.number) == (b"2-0", 4)
    follower.offer_entry(b"3-0", END)
    assert await task is END


async def test_nothing_overtakes_what_the_client_could_not_take():
    taken, is_slow = [], [True]

    def take(event):
        if is_slow[0]:
            return False
        taken.append(event)
        return True

    follower = Follower(b"0", 1, take)
    task = await waiting(follower)
    follower.offer_line(gain(1))
    is_slow[0] = False
    follower.offer_line(gain(2))
    assert taken == []
    assert list_numbers([await task, await follower.read(1)]) == [1, 2]
    task = await waiting(follower)
    follower.offer_line(gain(3))
    assert list_numbers(taken) == [3]
    task.cancel()


async def test_a_client_that_cannot_be_written_to_fails_alone():
    def take(_event):
        raise ZeroDivisionError

    follower = Follower(b"0", 1, take)
    task = await waiting(follower)
    follower.offer_line(gain(1))
    with pytest.raises(ZeroDivisionError):
        await task


async def test_nothing_follows_what_could_not_be_written():
    """Or the client would see a gap."""

    def take(_event):
        raise ZeroDivisionError

    follower = Follower(b"0", 1, take)
    task = await waiting(follower)
    for number in (1, 2):
        follower.offer_line(gain(number))
    follower.offer_entry(b"1-0", gain(1, 3))
    with pytest.raises(ZeroDivisionError):
        await task


async def test_an_end_is_told_even_if_redis_has_lost_what_was_before_it():
    follower = Follower(b"0", 1)
    follower.offer_line(gain(1, 12))
    assert follower.offer_line(END)  # number 9
    assert list_numbers([await follower.read(1)]) == list(range(1, 13))
    assert await follower.read(1) is END


async def test_a_lost_reader_is_told_after_what_came():
    follower = Follower(b"0", 1)
    follower.offer_line(gain(1))
    follower.fail(OSError("gone"))
    assert list_numbers([await follower.read(1)]) == [1]
    with pytest.raises(ReaderLostError):
        await follower.read(1)


async def test_a_slow_client_reads_again_from_what_it_has(monkeypatch):
    monkeypatch.setattr(module, "BACKLOG", 2)
    follower = Follower(b"0", 1)
    for number in range(1, 6):
        follower.offer_entry(b"%d-0" % number, gain(number))
    assert list_numbers([await follower.read(1), await follower.read(1)]) == [1, 2]
    with pytest.raises(BehindError):
        await follower.read(1)
    assert (follower.seen, follower.number) == (b"2-0", 3)


async def test_what_was_heard_counts_as_no_silence():
    follower = Follower(b"0", 1, lambda _event: True)
    task = asyncio.create_task(follower.read(0.05))
    for number in range(1, 21):
        await asyncio.sleep(0.01)
        follower.offer_line(gain(number))
    assert follower.number == 21
    assert await task is None
    follower.close()


ways = st.lists(
    st.tuples(st.booleans(), st.integers(0, 8), st.integers(1, 4), st.booleans()), max_size=30
)


@given(ways, st.integers(0, 4), st.booleans())
def test_any_mixture_of_lines_and_entries_is_one_stream(ways, caught_up, can_take):
    """Entries are contiguous from where the follower joined; lines come as they like."""

    async def run():
        got = []
        follower = Follower(b"0", 1, lambda event: can_take and not got.append(event))
        stored = caught_up
        for is_line, first, length, reads in ways:
            if is_line:
                follower.offer_line(gain(1 + first, first + length))
            else:
                follower.offer_entry(b"%d-0" % stored, gain(stored + 1, stored + length))
                stored += length
            if reads:  # the entries before those that were offered
                await _read_all(follower, caught_up, got)
        await _read_all(follower, caught_up, got)
        return list_numbers(got), follower

    numbers, follower = asyncio.run(run())
    assert numbers == list(range(1, follower.number))


async def _read_all(follower, caught_up, got):
    before = [follower.catch_up(b"0-%d" % n, gain(n)) for n in range(1, caught_up + 1)]
    got += filter(None, before)
    task = await waiting(follower)
    while task.done():
        got.append(task.result())
        task = await waiting(follower)
    task.cancel()
