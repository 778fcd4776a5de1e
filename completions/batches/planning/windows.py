"""The order in which batches are fed, when each of them ends, and how likely that is in time.

Numbers in, numbers out: the feeder, the admission of batches and `benchmarks/studies/deadlines.py`
share what is here.

An organization's batches go by slack: those that can still end in their windows go first, and of
these those to whom that was promised, by the end of their windows. Its oldest batch always has a
part of its workers, so that no batch starves. A forecast follows this order at the measured speed.
How far earlier forecasts were off, whatever the reason, says how likely an end is. A wide window
that was promised gives way to narrow ones, so its forecasts are off by more.
"""

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

from completions.batches.planning.intervals import COVERED, MIN_SAMPLE

OLDEST_SHARE = 0.25
"""The part of its organization's workers that the oldest batch has, whatever its turn."""
_MAX_SPEEDUP = 2.0
"""A batch that needs a higher speed than this many times the measured one has no chance."""
_MARGIN = 5.0
"""Seconds that no forecast knows: lines are sent and their results stored in turns. Errors of this
size count for little."""
MAX_ERRORS = 60
"""The number of latest forecasts whose errors count."""
_MIN_ERRORS = 20
_USUAL_SPREAD = 0.5
"""Until so many forecasts have come true or not, the others are taken to be off by this factor:
the deviation of its logarithm."""
_NARROW, _WIDE = 0.25, 2.0
"""The logarithms of the narrowest and the widest window that differ in the spread of errors, in
expected times of a batch."""


class Work(NamedTuple):
    """What the lines of one batch ask of one model."""

    lines: int
    prompt: int
    """Tokens of their prompts that must be computed."""
    most: int
    """The most completion tokens, as `max_tokens` has them."""
    ended: int = 0
    """How many lines have ended."""
    completion: float = 0.0
    """The completion tokens of these."""


def estimate_tokens(work: Work, ratio: float) -> float:
    """Estimate the tokens that are still to be computed. `ratio` is that of completion tokens to
    the most, until some lines of the batch say more."""
    waiting = max(0, work.lines - work.ended)
    if not waiting:
        return 0.0
    each = work.completion / work.ended if work.ended >= MIN_SAMPLE else 0.0
    return waiting * ((each or ratio * work.most / work.lines) + work.prompt / work.lines)


@dataclass(frozen=True, slots=True)
class Queued:
    """The lines of one batch that wait for one model, or run on it."""

    id: str
    organization_id: int
    created: float
    """Unix time, as all times here."""
    due: float
    """When the window ends."""
    seconds: float
    """What they take if nothing else runs."""
    is_promised: bool = True
    """Whether it was to end in its window with a probability of COVERED."""

    def has_chance(self, now: float) -> bool:
        return self.seconds <= _MAX_SPEEDUP * (self.due - now)


def order(batches: Iterable[Queued], now: float) -> list[Queued]:
    """Return the batches of one organization in the order in which they are fed."""
    return sorted(
        batches,
        key=lambda each: (not each.has_chance(now), not each.is_promised, each.due, each.created),
    )


def divide(ordered: Sequence[Queued]) -> dict[str, float]:
    """Return the parts of their organization's workers that batches have, by id."""
    if not ordered:
        return {}
    return _share(ordered[0], min(ordered, key=_get_age))


def _get_age(batch: Queued) -> float:
    return batch.created


def _share(first: Queued, oldest: Queued) -> dict[str, float]:
    if first is oldest:
        return {first.id: 1.0}
    return {first.id: 1 - OLDEST_SHARE, oldest.id: OLDEST_SHARE}


def find_ends(queue: Sequence[Queued], now: float) -> dict[str, float]:
    """Return when each of one model's batches is expected to end. Organizations with batches have
    equal shares of the workers."""
    waiting: dict[int, list[Queued]] = defaultdict(list)
    for each in queue:
        waiting[each.organization_id].append(each)
    orders = [order(batches, now) for batches in waiting.values()]
    lanes = [(deque(turns), deque(sorted(turns, key=_get_age))) for turns in orders]
    left = {each.id: each.seconds for each in queue}
    ends: dict[str, float] = {}
    at = now
    while lanes:
        parts = {
            id: part / len(lanes)
            for turns, ages in lanes
            for id, part in _share(turns[0], ages[0]).items()
        }
        step = min(left[id] / part for id, part in parts.items())
        at += step
        for id, part in parts.items():
            left[id] -= step * part
        ended = {id for id in parts if left[id] <= 1e-9 * (1 + step)}
        ends |= dict.fromkeys(ended, at)
        for waits in (waits for lane in lanes for waits in lane):
            while waits and waits[0].id in ends:
                waits.popleft()
        lanes = [lane for lane in lanes if lane[0]]
    return ends


class Errors:
    """By what factor forecasts were off: measured, and assumed as far as few are measured."""

    def __init__(self, ratios: Sequence[float] = ()) -> None:
        """`ratios` has the measured factors, the latest first."""
        measured = [math.log(ratio) for ratio in ratios[:MAX_ERRORS]]
        usual = statistics.NormalDist(0, _USUAL_SPREAD)
        assumed = max(0, _MIN_ERRORS - len(measured))
        quantiles = [usual.inv_cdf((n + 0.5) / assumed) for n in range(assumed)]
        self._logs = sorted([*measured, *quantiles])
        self._deviation = max(0.05, statistics.stdev(self._logs))

    def widen(self, spread: float) -> "Errors":
        """Return these errors where all spread by a factor: that of their logarithms."""
        wider = copy(self)
        wider._logs = [spread * each for each in self._logs]
        wider._deviation = spread * self._deviation
        return wider

    @staticmethod
    def measure(expected: float, actual: float, spread: float = 1.0) -> float:
        """Return the factor by which a forecast of so many seconds was off, in terms of `spread`:
        `widen` undoes that."""
        factor = (max(0.0, actual) + _MARGIN) / (max(0.0, expected) + _MARGIN)
        return float(factor ** (1 / spread))

    def find_seconds(self, expected: float, probability: float = COVERED) -> float:
        """Return the seconds that suffice with a probability, if so many are expected."""
        rank = probability * (len(self._logs) + 1) - 1
        low = min(max(0, math.floor(rank)), len(self._logs) - 2)
        one, other = self._logs[low : low + 2]
        factor = math.exp(one + (rank - low) * (other - one))
        return max(0.0, factor * (expected + _MARGIN) - _MARGIN)

    def find_probability(self, expected: float, seconds: float) -> float:
        """Return the probability that so many seconds suffice: the part of forecasts that were off
        by no more, with a tail beyond the worst."""
        if seconds <= 0:
            return 0.0
        factor = math.log(self.measure(expected, seconds))
        logs, n = self._logs, len(self._logs)
        if factor >= logs[-1]:
            return 1 - math.exp((logs[-1] - factor) / self._deviation) / (n + 1)
        if factor < logs[0]:
            return math.exp((factor - logs[0]) / self._deviation) / (n + 1)
        above = next(at for at, each in enumerate(logs) if each > factor)
        one, other = logs[above - 1], logs[above]
        return (above + (factor - one) / (other - one)) / (n + 1)


class Outlook(NamedTuple):
    """What is expected of one batch."""

    seconds: float
    """Until its end."""
    done_by: float
    """When it has ended with a probability of COVERED."""
    probability: float
    """That it ends in its window."""

    @property
    def is_in_time(self) -> bool:
        return self.probability >= COVERED


class Track(NamedTuple):
    """The errors of earlier forecasts: of batches that were promised their windows, which go first,
    and of the others."""

    promised: Errors
    others: Errors


def find_spread(seconds: float, window: float, *, is_promised: bool) -> float:
    """Return how widely the errors of a batch spread that takes so many seconds and has a window of
    so many: the root of the window's logarithm, as `benchmarks/studies/deadlines.py` finds. Where
    nothing is promised, the window does not matter."""
    if not is_promised:
        return 1.0
    return math.sqrt(min(_WIDE, max(_NARROW, math.log(Errors.measure(seconds, window)))))


def look_ahead(queue: Sequence[Queued], track: Track, now: float) -> dict[str, Outlook]:
    """Return what is expected of each batch of one model, by id."""
    outlooks, ends = {}, find_ends(queue, now)
    for each in queue:
        seconds, errors = ends[each.id] - now, track.promised if each.is_promised else track.others
        spread = find_spread(seconds, each.due - now, is_promised=each.is_promised)
        outlooks[each.id] = expect(seconds, each.due, errors.widen(spread), now)
    return outlooks


def expect(seconds: float, due: float, errors: Errors, now: float) -> Outlook:
    """Return the outlook of what is expected to take so many seconds."""
    done_by = now + errors.find_seconds(seconds)
    return Outlook(seconds, done_by, errors.find_probability(seconds, due - now))


def admit(queue: Sequence[Queued], new: Queued, track: Track, now: float) -> tuple[Queued, Outlook]:
    """Place a new batch among those of its model. It is promised its window if it will probably
    end in it, and leaves that to each batch of its organization that will."""
    promised = replace(new, is_promised=True)
    before, after = look_ahead(queue, track, now), look_ahead([*queue, promised], track, now)
    if after[new.id].is_in_time and not _find_harmed(queue, new, before, after):
        return promised, after[new.id]
    last = replace(new, is_promised=False)
    return last, look_ahead([*queue, last], track, now)[new.id]


def _find_harmed(
    queue: Sequence[Queued],
    new: Queued,
    before: Mapping[str, Outlook],
    after: Mapping[str, Outlook],
) -> list[str]:
    """Return the batches of its organization that end in time without the new one only."""
    return [
        each.id
        for each in queue
        if each.organization_id == new.organization_id
        and before[each.id].is_in_time
        and not after[each.id].is_in_time
    ]
