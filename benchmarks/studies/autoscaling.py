"""How many engine workers an autoscaler runs, by the metric that it follows: a simulation.

    python -m benchmarks.studies.autoscaling [--plot OUT.svg]

The autoscaler is Kubernetes' HorizontalPodAutoscaler with the settings of
``deploy/kubernetes/components/keda``: it decides every 15 s with a tolerance of a tenth, adds pods
at once, and removes one a minute after the metric has asked for fewer for five minutes. A worker
takes two minutes to start, and runs ``SLOTS`` requests at once. The load is a steady stream of
calls, which triples for twenty minutes, with a batch beside it, and no load at the end. --plot
needs matplotlib, which the project does not install.
"""

import math
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.command_line import parser, print_columns

SLOTS = 64
HELD = 3 * SLOTS + 16
"""Jobs that a worker takes from the queue: running ones, and ones that wait in the worker."""
STARTUP = 120
"""Seconds until a new worker serves."""
MEAN_SECONDS = 12.0
"""Mean duration of a call or a line, exponentially distributed."""
LEAST, MOST = 1, 8
"""Workers."""
EVERY = 15
"""Seconds between two decisions of the autoscaler, and between two scrapes of Prometheus."""
TOLERANCE = 0.1
STABILISATION = 300
DOWN_EVERY = 60
MINUTES = 240

STEADY = 8.0
"""Calls per second."""
BURST = range(20 * 60, 40 * 60)
NIGHT = 70 * 60
LINES = 60_000
DRAIN = 200 * 60


@dataclass(slots=True)
class Load:
    """The requests in the system: calls, which run first, and lines of a batch."""

    calls: deque[int] = field(default_factory=deque)
    """Arrival times of waiting calls."""
    lines: int = 0
    """Lines that the batch has sent and that wait; ``file`` counts those it has not sent."""
    file: int = 0
    running: int = 0

    @property
    def waiting(self) -> int:
        return len(self.calls) + self.lines


Signal = Callable[[Load], int]


@dataclass(frozen=True, slots=True)
class Metric:
    """What the autoscaler divides by ``threshold`` to get the number of workers."""

    name: str
    value: Signal
    threshold: int


DEMAND = Metric("running + waiting", lambda load: load.running + load.waiting, SLOTS * 3 // 4)
WAITING = Metric("waiting", lambda load: load.waiting, SLOTS // 4)


@dataclass(slots=True)
class Outcome:
    replicas: list[int] = field(default_factory=list)
    """Requested number of workers, by second."""
    demand: list[int] = field(default_factory=list)
    """Requests in the system, by second."""
    waits: list[int] = field(default_factory=list)
    """Seconds that each call waited for a slot."""
    batch_seconds: int = 0

    @property
    def turns(self) -> int:
        """How often the number of workers changed direction."""
        steps = [b - a for a, b in pairwise(self.replicas) if a != b]
        return sum((a > 0) != (b > 0) for a, b in pairwise(steps))

    @property
    def worker_hours(self) -> float:
        return sum(self.replicas) / 3600

    @property
    def late(self) -> int:
        """Return the 95th percentile of the calls' waits, in seconds."""
        return sorted(self.waits)[len(self.waits) * 95 // 100]


class Autoscaler:
    """The algorithm of a HorizontalPodAutoscaler with one external metric of type AverageValue
    (https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/)."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._seen = 0
        self._wanted: deque[tuple[int, int]] = deque()
        self._last_down = -DOWN_EVERY
        self.replicas = LEAST

    def look(self, now: int, load: Load) -> None:
        """Decide by the metric's value at the previous decision, which is what Prometheus has."""
        value, self._seen = self._seen, self._metric.value(load)
        ratio = value / (self._metric.threshold * self.replicas)
        wanted = self.replicas
        if abs(ratio - 1) > TOLERANCE:
            wanted = math.ceil(value / self._metric.threshold)
        wanted = min(max(wanted, LEAST), MOST)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] <= now - STABILISATION:
            self._wanted.popleft()
        if wanted > self.replicas:
            self.replicas = min(wanted, max(2 * self.replicas, self.replicas + 4))
        elif now - self._last_down >= DOWN_EVERY:
            highest = max(count for _, count in self._wanted)
            if highest < self.replicas:
                self.replicas -= 1
                self._last_down = now


def simulate(metric: Metric, seed: int = 1) -> Outcome:
    """Simulate four hours in steps of one second."""
    rng = random.Random(seed)
    scaler, load, outcome = Autoscaler(metric), Load(), Outcome()
    ready_at = [0] * LEAST
    for now in range(MINUTES * 60):
        load.calls.extend([now] * _arrivals(rng, _calls_per_second(now)))
        if now == NIGHT:
            load.file = LINES
        if now % EVERY == 0:
            scaler.look(now, load)
            ready_at += [now + STARTUP] * (scaler.replicas - len(ready_at))
            del ready_at[scaler.replicas :]
        ready = sum(at <= now for at in ready_at)
        _feed(load, ready)
        outcome.waits += [now - at for at in _run(rng, load, ready * SLOTS)]
        outcome.replicas.append(scaler.replicas)
        outcome.demand.append(load.running + load.waiting)
        if load.file or load.lines:
            outcome.batch_seconds = now - NIGHT
    return outcome


def _calls_per_second(now: int) -> float:
    if now in BURST:
        return 3 * STEADY
    return 0.0 if now >= DRAIN else STEADY


def _arrivals(rng: random.Random, rate: float) -> int:
    """Draw a Poisson number by Knuth's product of uniform numbers."""
    count, product, limit = 0, rng.random(), math.exp(-rate)
    while product > limit:
        count += 1
        product *= rng.random()
    return count


def _feed(load: Load, ready: int) -> None:
    """Let the batch send as many lines as the workers have room for."""
    sent = min(load.file, max(0, ready * HELD - load.running - load.waiting))
    load.file -= sent
    load.lines += sent


def _run(rng: random.Random, load: Load, slots: int) -> Iterator[int]:
    """Run the workers for one second. Yields the arrival time of each call that begins."""
    load.running -= sum(rng.random() < 1 / MEAN_SECONDS for _ in range(load.running))
    while load.calls and load.running < slots:
        load.running += 1
        yield load.calls.popleft()
    begun = min(load.lines, max(0, slots - load.running))
    load.lines -= begun
    load.running += begun


def draw(outcomes: dict[str, Outcome], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(outcomes), 1, figsize=(9, 5.2), sharex=True, layout="constrained"
    )
    for (name, outcome), left in zip(outcomes.items(), axes, strict=True):
        minutes = [second / 60 for second in range(0, len(outcome.demand), 30)]
        left.fill_between(minutes, outcome.demand[::30], color="#cbd5e1", label="requests")
        left.set(title=f"by {name}: {outcome.turns} turns", ylabel="requests", ylim=(0, None))
        right = left.twinx()
        right.step(minutes, outcome.replicas[::30], color="#1d4ed8", where="post")
        right.set(ylabel="workers", ylim=(0, MOST + 0.5))
    axes[-1].set(xlabel="minutes: a burst at 20, a batch of 60,000 lines at 70, no calls from 200")
    pyplot.rcParams["svg.fonttype"] = "none"
    figure.savefig(out)


def main() -> int:
    options = parser(__doc__, seed=1, plot="").parse_args()
    outcomes = {metric.name: simulate(metric, options.seed) for metric in (DEMAND, WAITING)}
    print_columns("signal", "turns", "worker-hours", "p95 wait", "batch", width=18)
    for name, outcome in outcomes.items():
        print_columns(
            name,
            outcome.turns,
            f"{outcome.worker_hours:.1f}",
            f"{outcome.late} s",
            f"{outcome.batch_seconds / 60:.0f} min",
            width=18,
        )
    if options.plot:
        try:
            draw(outcomes, Path(options.plot))
        except ImportError:
            print("--plot needs matplotlib: pip install matplotlib", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
