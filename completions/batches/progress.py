"""The speed of a batch, its expected end, and the batches ahead of it."""

from dataclasses import dataclass, replace
from datetime import datetime

from completions.models import Batch, BatchStatus

MARK_EVERY = 5.0
"""Seconds between two samples."""
MARKS = 13
"""Samples kept: those of the last minute."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an unfinished batch; speed and time are None while unknown."""

    position: int
    """Batches of the same organization and model whose lines go first."""
    lines_per_second: float | None
    seconds_left: int | None


def mark(now: datetime) -> None:
    """Store a sample for every running batch whose last one is MARK_EVERY seconds old."""
    at = now.timestamp()
    for batch in Batch.objects.filter(status=BatchStatus.IN_PROGRESS):
        if not batch.pace or at - batch.pace[-1][0] >= MARK_EVERY:
            marks = [*batch.pace, [at, batch.done]][-MARKS:]
            Batch.objects.filter(id=batch.id).update(pace=marks)


def of(batch: Batch, now: datetime) -> Progress:
    """Return the progress of an unfinished batch."""
    before = Batch.objects.filter(
        organization_id=batch.organization_id,
        model=batch.model,
        status=BatchStatus.IN_PROGRESS,
        created_at__lt=batch.created_at,
    )
    return replace(of_pace(batch, now), position=before.count())


def of_pace(batch: Batch, now: datetime) -> Progress:
    """Return the progress without a query; `position` is 0."""
    rate = _lines_per_second(batch, now)
    left = batch.total - batch.done
    return Progress(0, rate and round(rate, 2), round(left / rate) if rate else None)


def _lines_per_second(batch: Batch, now: datetime) -> float | None:
    if batch.status != BatchStatus.IN_PROGRESS or not batch.pace:
        return None
    since, done = batch.pace[0]
    elapsed = now.timestamp() - since
    gained = batch.done - done
    return float(gained / elapsed) if gained and elapsed > 0 else None
