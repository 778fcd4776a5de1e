"""No job waits longer for its model than the documented bound, and models do not thrash."""

import heapq
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from completions.jobs.new_job import Level
from project.processes.swap_policy import PATIENCE, PUT_OFF, STAY, ModelState, choose

LOOK = 0.5
"""Seconds between two looks."""


class Machine:
    """A worker with room for one model, whose jobs take a second each. `arrivals` are (time, model,
    level); all times are in seconds."""

    def __init__(self, loads: dict[str, float], arrivals: list[tuple[float, str, Level]]) -> None:
        self.loads = loads
        self.arrivals = sorted(arrivals, reverse=True)
        self.states = {name: ModelState() for name in loads}
        self.queues: dict[str, list[tuple[Level, float]]] = {name: [] for name in loads}
        self.waits: list[tuple[Level, float]] = []
        self.longest = dict.fromkeys(loads, 0.0)
        self.swaps = 0
        self.now = 0.0

    def run(self) -> None:
        loaded, loaded_at, busy_until = None, 0.0, 0.0
        while self.arrivals or any(self.queues.values()) or self.now < busy_until:
            while self.arrivals and self.arrivals[-1][0] <= self.now:
                at, model, level = self.arrivals.pop()
                heapq.heappush(self.queues[model], (level, at))
            for name, state in self.states.items():
                queue = self.queues[name]
                level = queue[0][0] if queue else None
                waiting = sum(each == level for each, _ in queue)
                state.observe(self.now, level, waiting, is_needed=name != loaded)
            if self.now >= busy_until and loaded and self.queues[loaded]:
                level, at = heapq.heappop(self.queues[loaded])
                self.waits.append((level, self.now - at))
                self.longest[loaded] = max(self.longest[loaded], self.now - at)
                busy_until = self.now + 1
            is_idle = self.now >= busy_until and not (loaded and self.queues[loaded])
            if chosen := choose(self.now, loaded, loaded_at, is_idle, self.states):
                self.now = max(self.now, busy_until) + self.loads[chosen]  # after the grace
                loaded, loaded_at = chosen, self.now
                self.states[chosen].load_seconds = self.loads[chosen]
                self.swaps += 1
            else:
                self.now += LOOK


@given(
    st.lists(st.floats(0.5, 40), min_size=2, max_size=5),
    st.lists(st.tuples(st.floats(0, 200), st.integers(0, 4), st.sampled_from(Level)), max_size=30),
)
def test_a_model_is_loaded_within_the_bound(
    loads: list[float], drawn: list[tuple[float, int, Level]]
) -> None:
    """Of the first jobs that wait: those behind others of their own model wait for these too."""
    names = [str(n) for n in range(len(loads))]
    by_name = dict(zip(names, loads, strict=True))
    machine = Machine(by_name, [(at, names[n % len(names)], level) for at, n, level in drawn])
    machine.run()
    assert len(machine.waits) == len(drawn)
    # Before it was measured, a model is expected to load within FIRST_LOAD.
    turn = sum((1 + STAY) * max(load, 5) + 1 for load in loads)
    for level, wait in machine.waits:
        assert wait <= (1 + PUT_OFF) * PATIENCE[level] + turn + LOOK * len(loads) + len(drawn)


def test_two_models_under_load_do_not_thrash() -> None:
    """A policy that follows arrival would load a model for every second job."""
    arrivals = [(n * 1.5, "ab"[hash((n, 1)) // 64 % 2], Level.LIVE) for n in range(400)]
    machine = Machine({"a": 4.0, "b": 4.0}, arrivals)
    machine.run()
    follows = sum(one[1] != other[1] for one, other in pairwise(arrivals))
    assert machine.swaps < 60 < follows / 3


def test_an_idle_worker_loads_what_is_asked_for_at_once() -> None:
    machine = Machine({"a": 2.0, "b": 2.0}, [(0, "a", Level.BATCH), (100, "b", Level.BATCH)])
    machine.run()
    assert machine.waits == [(Level.BATCH, 2.0), (Level.BATCH, 2.0)]


def test_lines_of_batches_run_on_the_loaded_model_first() -> None:
    arrivals = [(0, "a", Level.BATCH)] * 100 + [(1, "b", Level.BATCH)]
    machine = Machine({"a": 2.0, "b": 2.0}, arrivals)
    machine.run()
    assert machine.swaps == 2


def test_what_clients_wait_for_interrupts_lines_of_batches() -> None:
    arrivals = [(0.0, "a", Level.BATCH)] * 100 + [(1.0, "b", Level.LIVE)]
    machine = Machine({"a": 2.0, "b": 2.0}, arrivals)
    machine.run()
    [wait] = [wait for level, wait in machine.waits if level == Level.LIVE]
    assert PATIENCE[Level.LIVE] < wait < PATIENCE[Level.LIVE] + 5
    assert machine.swaps == 3


def test_a_longer_queue_is_served_first_within_bounds() -> None:
    """Jobs for one model keep coming, faster than it answers them; one comes for another."""
    arrivals = [(n * 0.8, "a", Level.LIVE) for n in range(300)] + [(2.0, "b", Level.LIVE)]
    machine = Machine({"a": 2.0, "b": 2.0}, arrivals)
    machine.run()
    assert machine.swaps == 3
    patience = PATIENCE[Level.LIVE]
    assert (1 + PUT_OFF) * patience <= machine.longest["b"] < (1 + PUT_OFF) * patience + 5


def test_a_few_urgent_jobs_are_not_put_off_by_many_others() -> None:
    busy = ModelState(level=Level.BACKGROUND, waiting=100, load_seconds=1.0)
    asked = ModelState(due=10.0, level=Level.LIVE, waiting=1)
    assert choose(10.0, "a", 0.0, False, {"a": busy, "b": asked}) == "b"
    busy.level = Level.LIVE
    assert choose(10.0, "a", 0.0, False, {"a": busy, "b": asked}) is None
    late = 10.0 + PUT_OFF * PATIENCE[Level.LIVE]
    assert choose(late, "a", 0.0, False, {"a": busy, "b": asked}) == "b"
    busy.waiting = 1
    assert choose(10.0, "a", 0.0, False, {"a": busy, "b": asked}) == "b"
