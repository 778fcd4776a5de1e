"""Do batches end when their forecast says? Simulated: bursts of batches and of live requests.

    python -m benchmarks.studies.deadlines --batches 200 --seeds 5

What orders, forecasts and admits batches is what the service runs
(`completions/batches/planning/windows.py`). Simulated are the clients, the engine and the clock:

- Batches of three organizations come in bursts of up to six. Their sizes differ by a factor of a
  hundred, and how long their answers are is known once some have ended.
- The engine computes `SPEED` tokens a second, and in bursts of live requests 30 to 70 % of that.
- Half of the clients ask for a window as long as the forecast says is enough with 90 %, the others
  for what they like.

Prints how many of the forecasts with 90 % came true, and how many batches ended in their windows,
by the probability that the answer to their admission had.
"""

import argparse
import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean

from completions.batches.planning.intervals import COVERED
from completions.batches.planning.windows import (
    Errors,
    Outlook,
    Queued,
    Track,
    Work,
    admit,
    divide,
    estimate_tokens,
    find_spread,
    order,
)

SPEED = 200.0
TICK = 10.0
WARM_UP = 60
"""Batches that come before those that are counted."""
ORGANIZATIONS = 3
_MEASURED = 120
"""The ticks with work from which the speed is measured."""
_RATIO = 0.4
"""The median part of its most tokens that a line has."""


NOTHING_KNOWN = Outlook(0.0, 0.0, 0.0)


@dataclass
class Batch:
    """One simulated batch; the engine alone knows `mean`, the tokens of its answers."""

    id: str
    organization_id: int
    created: float
    lines: int
    prompt: int
    most: int
    mean: float
    due: float = 0.0
    is_promised: bool = False
    outlook: Outlook = NOTHING_KNOWN
    ended: float = 0.0
    """Lines, in parts too."""
    ended_at: float | None = None

    @property
    def tokens_per_line(self) -> float:
        return self.prompt / self.lines + self.mean

    def count_work(self) -> Work:
        ended = int(self.ended)
        return Work(self.lines, self.prompt, self.most, ended, ended * self.mean)

    def queue(self, speed: float, ratio: float) -> Queued:
        seconds = estimate_tokens(self.count_work(), ratio) / speed
        return Queued(
            self.id, self.organization_id, self.created, self.due, seconds, self.is_promised
        )


@dataclass
class Simulation:
    random: random.Random
    load: float
    """The part of the engine's speed that batches ask for on average."""
    now: float = 0.0
    running: list[Batch] = field(default_factory=list)
    ended: list[Batch] = field(default_factory=list)
    speeds: deque[float] = field(default_factory=lambda: deque([SPEED], _MEASURED))

    def run(self, count: int) -> list[Batch]:
        """Return `count` batches that were admitted one after another, once they have ended."""
        arrivals, engine = self._arrive(), self._compute()
        counted: list[Batch] = []
        at, batch = next(arrivals)
        while len(counted) < count or any(each.ended_at is None for each in counted):
            while at <= self.now:
                self._admit(batch)
                total = len(self.running) + len(self.ended)
                if total > WARM_UP and len(counted) < count:
                    counted.append(batch)
                at, batch = next(arrivals)
            self._step(next(engine) * TICK)
        return counted

    def _arrive(self) -> Iterator[tuple[float, Batch]]:
        at, number = 0.0, 0
        while True:
            burst = self.random.choice((1, 1, 2, 3, 6))
            owner = self.random.randrange(ORGANIZATIONS)
            for _ in range(burst):
                number += 1
                batch = self._make(f"batch-{number}", owner, at)
                yield at, batch
            usual = 600 * 150 * math.exp(0.5)  # tokens of a batch
            at += self.random.expovariate(self.load * SPEED / (2.6 * usual))

    def _make(self, name: str, owner: int, at: float) -> Batch:
        lines = max(20, round(self.random.lognormvariate(math.log(600), 1)))
        tokens = self.random.choice((100, 200, 300))
        mean = tokens * min(1.0, self.random.lognormvariate(math.log(_RATIO), 0.4))
        return Batch(
            name, owner, at, lines, lines * self.random.randint(20, 120), lines * tokens, mean
        )

    def _compute(self) -> Iterator[float]:
        """Yield the speed of each tick."""
        while True:
            for least, most, minutes in ((1.0, 1.0, 30), (0.3, 0.7, 10)):
                part = self.random.uniform(least, most)
                ticks = 1 + int(self.random.expovariate(TICK / (60 * minutes)))
                for _ in range(ticks):
                    yield SPEED * part * self.random.uniform(0.9, 1.05)

    def _admit(self, batch: Batch) -> None:
        speed, ratio, track = fmean(self.speeds), self._measure_ratio(), self._measure_track()
        queue = [each.queue(speed, ratio) for each in self.running]
        batch.due = self.now + 86400
        for _ in range(8):  # an earlier end of the window may bring an earlier turn
            _, quote = admit(queue, batch.queue(speed, ratio), track, self.now)
            batch.due = quote.done_by + 1
        if self.random.random() < 0.5:
            batch.due = self.now + (batch.due - self.now) * self.random.lognormvariate(0.3, 0.8)
        placed, batch.outlook = admit(queue, batch.queue(speed, ratio), track, self.now)
        batch.is_promised = placed.is_promised
        self.running.append(batch)

    def _measure_ratio(self) -> float:
        latest = [each for each in self.ended if each.ended_at is not None][-20:]
        ratios = [each.lines * each.mean / each.most for each in latest]
        return math.exp(fmean(map(math.log, ratios))) if ratios else 1.0

    def _measure_track(self) -> Track:
        """Measure batches that have ended, and those that take longer than was expected."""
        ratios: dict[bool, list[float]] = {True: [], False: []}
        for each in sorted([*self.ended, *self.running], key=lambda each: -each.created):
            took = (self.now if each.ended_at is None else each.ended_at) - each.created
            seconds, window = each.outlook.seconds, each.due - each.created
            if each.ended_at is not None or took > seconds:
                spread = find_spread(seconds, window, is_promised=each.is_promised)
                ratios[each.is_promised].append(Errors.measure(seconds, took, spread))
        return Track(Errors(ratios[True]), Errors(ratios[False]))

    def _step(self, tokens: float) -> None:
        self.now += TICK
        lanes: dict[int, list[Queued]] = {}
        speed, ratio = fmean(self.speeds), self._measure_ratio()
        for batch in self.running:
            lanes.setdefault(batch.organization_id, []).append(batch.queue(speed, ratio))
        if not lanes:
            return
        self.speeds.append(tokens / TICK)
        by_id = {each.id: each for each in self.running}
        for lane in lanes.values():
            for name, part in divide(order(lane, self.now)).items():
                batch = by_id[name]
                batch.ended += tokens * part / len(lanes) / batch.tokens_per_line
        for batch in [each for each in self.running if each.ended >= each.lines]:
            batch.ended_at = self.now
            self.running.remove(batch)
            self.ended.append(batch)


@dataclass(frozen=True)
class Calibration:
    """What became of forecasts."""

    done_by: float
    """The part of all batches that ended by the time that had 90 %."""
    promised: float
    """The part of those with 90 to 95 % for their window that ended in it."""
    count: int
    """How many these are."""


def calibrate(seed: int, batches: int, load: float) -> tuple[Calibration, list[Batch]]:
    """Simulate batches, and return what became of their forecasts, and the batches."""
    counted = Simulation(random.Random(seed), load).run(batches)
    promised = [each for each in counted if COVERED <= each.outlook.probability < 0.95]
    return Calibration(
        fmean(ended_by(each, each.outlook.done_by) for each in counted),
        fmean(ended_by(each, each.due) for each in promised) if promised else math.nan,
        len(promised),
    ), counted


def ended_by(batch: Batch, at: float) -> bool:
    assert batch.ended_at is not None
    return batch.ended_at <= at


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    print("load  seed  by the time with 90 %  in the window, of those with 90 to 95 %")
    for load in (0.3, 0.5, 0.7):
        every: list[Batch] = []
        for seed in range(options.seeds):
            found, counted = calibrate(seed, options.batches, load)
            every += counted
            print(
                f"{load:4} {seed:5}  {found.done_by:21.1%}  {found.promised:7.1%} of {found.count}"
            )
        for low, high in ((0, 0.5), (0.5, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.01)):
            some = [each for each in every if low <= each.outlook.probability < high]
            if some:
                said = fmean(each.outlook.probability for each in some)
                came = fmean(ended_by(each, each.due) for each in some)
                print(f"{load:4}   all  said {said:.1%}, came true {came:.1%} of {len(some)}")


if __name__ == "__main__":
    main()
