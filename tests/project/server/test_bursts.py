"""Number and order of the requests that begin in one iteration of the event loop."""

import asyncio

from project.server.gateway import AdmissionLimiter


async def burst(limiter, count):
    """The requests that began in each iteration."""
    turn, began = 0, {}

    async def request(number):
        await limiter.wait()
        began[number] = turn

    tasks = [asyncio.create_task(request(number)) for number in range(count)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turn += 1
    return began


async def test_a_burst_is_admitted_in_portions_and_in_order():
    began = await burst(AdmissionLimiter(3), 10)
    turns = list(began.values())
    assert list(began) == list(range(10))
    assert turns == sorted(turns)
    assert max(turns.count(turn) for turn in turns) == 3


async def test_a_few_requests_do_not_wait():
    limiter = AdmissionLimiter(3)
    for _ in range(5):
        began = await burst(limiter, 2)
        assert set(began.values()) == {0}
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_cancelled_waiter_takes_no_slot():
    limiter = AdmissionLimiter(1)
    entered = []

    async def request(name):
        await limiter.wait()
        entered.append(name)

    first, leaving, last = (asyncio.create_task(request(n)) for n in ("first", "leaving", "last"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(first, last)
    assert entered == ["first", "last"]
