"""Organizations take turns: none waits for all requests of another."""

import asyncio
import threading

from completions.requests import fair_semaphore
from completions.requests.fair_semaphore import FairSemaphore
from tests.completions.checking import new_checks


async def settled(rounds=10):
    for _ in range(rounds):
        await asyncio.sleep(0)


class Crowd:
    """Requests of owners that each hold their turn until the test releases them."""

    def __init__(self, turns):
        self.semaphore, self.running, self.began, self.tasks = turns, [], [], {}

    async def _request(self, owner, name, end):
        await self.semaphore.acquire(owner)
        self.began.append(name)
        self.running.append(end)
        await end.wait()
        self.semaphore.release(owner)

    async def send(self, owner, name):
        self.tasks[name] = asyncio.create_task(self._request(owner, name, asyncio.Event()))
        await settled()

    async def end_first(self):
        self.running.pop(0).set()
        await settled()


async def test_one_owner_never_takes_all_turns():
    crowd = Crowd(FairSemaphore(3, 2))
    for number in range(5):
        await crowd.send(1, f"a{number}")
    assert crowd.began == ["a0", "a1"]
    await crowd.send(2, "b0")
    await crowd.send(2, "b1")
    assert crowd.began == ["a0", "a1", "b0"]
    for _ in range(4):
        await crowd.end_first()
    assert crowd.began == ["a0", "a1", "b0", "a2", "b1", "a3", "a4"]


async def test_a_cancelled_waiter_leaves_its_turn_to_others():
    crowd = Crowd(FairSemaphore(1, 1))
    for owner, name in ((1, "first"), (2, "leaving"), (3, "last")):
        await crowd.send(owner, name)
    crowd.tasks["leaving"].cancel()
    await settled()
    await crowd.end_first()
    assert crowd.began == ["first", "last"]
    await crowd.end_first()
    await crowd.send(1, "again")
    assert crowd.began[-1] == "again"


async def test_a_turn_granted_after_a_cancellation_is_returned():
    crowd = Crowd(FairSemaphore(1, 1))
    await crowd.send(1, "first")
    await crowd.send(2, "leaving")
    crowd.running.pop(0).set()
    await asyncio.sleep(0)  # the turn is given, and not yet taken
    crowd.tasks["leaving"].cancel()
    await settled()
    await crowd.send(3, "last")
    assert crowd.began[-1] == "last"


async def test_a_thread_stays_taken_while_its_function_runs():
    """Even after the caller was cancelled."""
    checks, end = new_checks(), threading.Event()
    crowd = [asyncio.create_task(checks.run(1, end.wait)) for _ in range(fair_semaphore.THREADS)]
    await asyncio.sleep(0.05)
    for task in crowd:
        task.cancel()
    assert await checks.run(2, lambda: "done") == "done"
    late = asyncio.create_task(checks.run(1, lambda: "late"))
    await asyncio.sleep(0.05)
    assert not late.done()
    end.set()
    assert await late == "late"
