"""Whether a worker that loads one of several models at a time should look at how many jobs wait.

    python -m benchmarks.studies.models_in_turn

A simulation of a machine with room for one model and ``SLOTS`` jobs at once. Jobs come at random,
more of them for the first model, in some scenarios in bursts. ``project/processes/swap_policy.py``
decides:

- ``policy``: as it is. Jobs of another model are put off while more wait for the loaded one.
- ``first``: without numbers. A model is due when its first job has waited for its patience.
- ``longest``: the same, but of the models that are due, the one with the most jobs is next.
- ``crowd``: the same as ``first`` with a patience that is divided among the waiting jobs.
- ``arrival``: without the policy. Jobs run in the order in which they came, and the worker loads
  the model of each.

Times are in seconds. All policies see the same jobs.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from benchmarks.command_line import parser, print_columns
from completions.jobs.new_job import Level
from project.processes.swap_policy import PATIENCE, ModelState, choose

SLOTS = 8
JOB_SECONDS = 4.0
"""Mean duration of a job, exponentially distributed."""
LOOK = 0.5
"""Seconds between two looks of the worker."""
DURATION = 2 * 3600
SEEDS = 2


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    rates: Sequence[float]
    """Jobs per second of each model."""
    load_seconds: float
    is_bursty: bool = False
    """Whether all jobs of a minute come in its first five seconds."""


SCENARIOS = (
    Scenario("two alike, half full", (0.5, 0.5), 4),
    Scenario("two, 9 to 1, half full", (0.9, 0.1), 4),
    Scenario("two, 9 to 1, slow to load", (0.9, 0.1), 30),
    Scenario("three, 6 to 3 to 1", (0.6, 0.3, 0.1), 10),
    Scenario("three, 6 to 3 to 1, three quarters full", (0.9, 0.45, 0.15), 10),
    Scenario("three, 6 to 3 to 1, in bursts", (0.6, 0.3, 0.1), 10, is_bursty=True),
)

Queues = Mapping[str, deque[float]]
"""The times at which the waiting jobs of each model came."""
States = Mapping[str, ModelState]


def keep(_now: float, _loaded: str | None, _queues: Queues, states: States) -> States:
    return states


def forget_numbers(_now: float, _loaded: str | None, _queues: Queues, states: States) -> States:
    return {name: replace(state, waiting=0) for name, state in states.items()}


def prefer_longest(now: float, loaded: str | None, queues: Queues, states: States) -> States:
    states = forget_numbers(now, loaded, queues, states)
    due = {
        name: state.due
        for name, state in states.items()
        if name != loaded and state.due is not None and state.due <= now
    }
    if len(due) < 2:
        return states
    longest = max(due, key=lambda name: len(queues[name]))
    return {**states, longest: replace(states[longest], due=min(due.values()) - 1)}


def divide_patience(now: float, loaded: str | None, queues: Queues, states: States) -> States:
    states = forget_numbers(now, loaded, queues, states)
    patience = PATIENCE[Level.LIVE]
    return {
        name: replace(state, due=queues[name][0] + patience / len(queues[name]))
        if state.due is not None and queues[name]
        else state
        for name, state in states.items()
    }


Change = Callable[[float, str | None, Queues, States], States]
POLICIES: Mapping[str, Change | None] = {
    "policy": keep,
    "first": forget_numbers,
    "longest": prefer_longest,
    "crowd": divide_patience,
    "arrival": None,
}


@dataclass(slots=True)
class Figures:
    waits: Mapping[str, list[float]]
    """By model, of which the last one is the rarest."""
    loads: int = 0

    def format(self, hours: float) -> list[str]:
        every = [wait for waits in self.waits.values() for wait in waits]
        *_, rarest = self.waits.values()
        seconds = mean(every), quantile(every, 0.95), quantile(rarest, 0.95), max(every)
        return [f"{self.loads / hours:.0f}", *(f"{each:.1f}" for each in seconds)]


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def draw_jobs(scenario: Scenario, seed: int) -> list[tuple[float, str, float]]:
    """Return (arrival, model, duration) of all jobs, the last one first."""
    dice, jobs = random.Random(seed), []
    for number, rate in enumerate(scenario.rates):
        at = 0.0
        while (at := at + dice.expovariate(rate)) < DURATION:
            begun = at // 60 * 60 + at % 60 / 12 if scenario.is_bursty else at
            jobs.append((begun, str(number), dice.expovariate(1 / JOB_SECONDS)))
    return sorted(jobs, reverse=True)


def find_first(queues: Queues) -> str | None:
    """Return the model of the job that came first."""
    waiting = {name: queue[0] for name, queue in queues.items() if queue}
    return min(waiting, key=lambda name: waiting[name]) if waiting else None


def measure(scenario: Scenario, change: Change | None) -> Figures:
    figures = Figures({str(number): [] for number in range(len(scenario.rates))})
    for seed in range(SEEDS):
        simulate(scenario, change, seed, figures)
    return figures


def simulate(scenario: Scenario, change: Change | None, seed: int, figures: Figures) -> None:
    jobs = draw_jobs(scenario, seed)
    names = [str(number) for number in range(len(scenario.rates))]
    states = {name: ModelState(load_seconds=scenario.load_seconds) for name in names}
    queues: dict[str, deque[float]] = {name: deque() for name in names}
    durations: dict[str, deque[float]] = {name: deque() for name in names}
    ends: list[float] = []
    loaded: str | None = None
    loaded_at = now = 0.0
    while jobs or any(queues.values()):
        while jobs and jobs[-1][0] <= now:
            at, model, seconds = jobs.pop()
            queues[model].append(at)
            durations[model].append(seconds)
        ends = [end for end in ends if end > now]
        while loaded is not None and queues[loaded] and len(ends) < SLOTS:
            if change is None and find_first(queues) != loaded:
                break
            figures.waits[loaded].append(now - queues[loaded].popleft())
            ends.append(now + durations[loaded].popleft())
        for name, state in states.items():
            waiting = len(queues[name])
            state.observe(now, Level.LIVE if waiting else None, waiting, name != loaded)
        is_idle = not ends and not (loaded and queues[loaded])
        if change is None:
            first = find_first(queues)
            chosen = None if first == loaded else first
        else:
            seen = change(now, loaded, queues, states)
            chosen = choose(now, loaded, loaded_at, is_idle, seen)
        if chosen:
            now = max([now, *ends]) + scenario.load_seconds  # running jobs end in the grace period
            loaded, loaded_at, ends = chosen, now, []
            figures.loads += 1
        else:
            now += LOOK


def main() -> None:
    parser(__doc__).parse_args()
    for scenario in SCENARIOS:
        print(f"\n{scenario.name}")
        print_columns("policy", "loads/hour", "mean wait", "95 %", "rarest: 95 %", "longest")
        for name, change in POLICIES.items():
            print_columns(name, *measure(scenario, change).format(SEEDS * DURATION / 3600))


if __name__ == "__main__":
    main()
