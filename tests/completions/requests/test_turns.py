"""Checks by turns: none of the organizations waits for all that another has sent."""

import asyncio
import threading

from completions.requests import turns
from completions.requests.turns import Checks, Turns


async def settled(rounds=10):
    for _ in range(rounds):
        await asyncio.sleep(0)


class Crowd:
    """Requests of owners that each hold their turn until they are told to go."""

    def __init__(self, turns):
        self.turns, self.running, self.began, self.tasks = turns, [], [], {}

    async def _request(self, owner, name, end):
        await self.turns.take(owner)
        self.began.append(name)
        self.running.append(end)
        await end.wait()
        self.turns.give(owner)

    async def send(self, owner, name):
        self.tasks[name] = asyncio.create_task(self._request(owner, name, asyncio.Event()))
        await settled()

    async def end_first(self):
        self.running.pop(0).set()
        await settled()


async def test_one_owner_never_has_all_turns_and_others_come_first():
    crowd = Crowd(Turns(3, 2))
    for number in range(5):
        await crowd.send(1, f"a{number}")
    assert crowd.began == ["a0", "a1"]
    await crowd.send(2, "b0")
    await crowd.send(2, "b1")
    assert crowd.began == ["a0", "a1", "b0"]
    for _ in range(4):
        await crowd.end_first()
    assert crowd.began == ["a0", "a1", "b0", "a2", "b1", "a3", "a4"]


async def test_who_hangs_up_leaves_its_place_to_others():
    crowd = Crowd(Turns(1, 1))
    for owner, name in ((1, "first"), (2, "leaving"), (3, "last")):
        await crowd.send(owner, name)
    crowd.tasks["leaving"].cancel()
    await settled()
    await crowd.end_first()
    assert crowd.began == ["first", "last"]
    await crowd.end_first()
    await crowd.send(1, "again")
    assert crowd.began[-1] == "again"


async def test_a_turn_that_came_too_late_is_given_back():
    crowd = Crowd(Turns(1, 1))
    await crowd.send(1, "first")
    await crowd.send(2, "leaving")
    crowd.running.pop(0).set()
    await asyncio.sleep(0)  # the turn is given, and not yet taken
    crowd.tasks["leaving"].cancel()
    await settled()
    await crowd.send(3, "last")
    assert crowd.began[-1] == "last"


async def test_a_thread_stays_taken_while_its_function_runs():
    """Even if nobody waits for it any more."""
    checks, end = Checks(), threading.Event()
    crowd = [asyncio.create_task(checks.run(1, end.wait)) for _ in range(turns.THREADS)]
    await asyncio.sleep(0.05)
    for task in crowd:
        task.cancel()
    assert await checks.run(2, lambda: "done") == "done"
    late = asyncio.create_task(checks.run(1, lambda: "late"))
    await asyncio.sleep(0.05)
    assert not late.done()
    end.set()
    assert await late == "late"
