"""Gathered work: every caller gets its own result or error."""

import asyncio

import pytest

from completions.jobs.micro_batcher import MicroBatcher


class Work:
    """Doubles what it is given, once it is let; items are kept as they came together."""

    def __init__(self):
        self.pieces = []
        self.begun = asyncio.Event()
        self.let = asyncio.Event()

    async def __call__(self, items):
        self.pieces.append(list(items))
        self.begun.set()
        await self.let.wait()
        return [ValueError("odd") if item % 2 else item * 2 for item in items]


async def test_items_that_arrive_meanwhile_form_one_batch():
    work = Work()
    batcher = MicroBatcher(work)
    first = asyncio.create_task(batcher.do(2))
    await work.begun.wait()
    others = [asyncio.create_task(batcher.do(item)) for item in (4, 6, 8)]
    await asyncio.sleep(0)
    work.let.set()
    assert await asyncio.gather(first, *others) == [4, 8, 12, 16]
    assert work.pieces == [[2], [4, 6, 8]]
    assert await batcher.do(10) == 20  # and it begins anew


async def test_a_failure_reaches_only_its_caller():
    work = Work()
    work.let.set()
    batcher = MicroBatcher(work)
    good, bad = await asyncio.gather(batcher.do(2), batcher.do(3), return_exceptions=True)
    assert good == 4
    assert isinstance(bad, ValueError)


async def test_a_cancelled_caller_does_not_affect_the_others():
    work = Work()
    batcher = MicroBatcher(work)
    gone, there = asyncio.create_task(batcher.do(2)), asyncio.create_task(batcher.do(4))
    await work.begun.wait()
    gone.cancel()
    await asyncio.wait({gone})
    work.let.set()
    assert await there == 8
    assert work.pieces == [[2, 4]]


@pytest.mark.parametrize("error", [ConnectionError(), TimeoutError()])
async def test_a_failure_of_all_is_everybodys(error):
    """After a silence of Redis that of those who came meanwhile, too: they have waited as well."""
    let = asyncio.Event()

    async def fail(items):
        await let.wait()
        raise error

    batcher = MicroBatcher(fail)
    tasks = [asyncio.create_task(batcher.do(item)) for item in (1, 2)]
    await asyncio.sleep(0)
    late = asyncio.create_task(batcher.do(3))
    await asyncio.sleep(0)
    let.set()
    found = await asyncio.gather(*tasks, late, return_exceptions=True)
    assert found == [error] * 3


async def test_cancelling_the_work_cancels_its_callers():
    work = Work()
    batcher = MicroBatcher(work)
    tasks = [asyncio.create_task(batcher.do(item)) for item in (2, 4)]
    await work.begun.wait()
    late = asyncio.create_task(batcher.do(6))
    await asyncio.sleep(0)
    own = {asyncio.current_task(), *tasks, late}
    (worker,) = asyncio.all_tasks() - own
    worker.cancel()
    async with asyncio.timeout(30):
        found = await asyncio.gather(*tasks, late, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in found)
