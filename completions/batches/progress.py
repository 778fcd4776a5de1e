"""The speed of a batch, its expected end, and the batches ahead of it."""

from dataclasses import dataclass, replace
from datetime import datetime

from completions.batches.planning import outlook
from completions.models import Batch, BatchStatus

SAMPLE_INTERVAL = 5.0
"""Seconds between two samples."""
MAX_SAMPLES = 13
"""The number of samples kept: one minute's."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an unfinished batch; speed and time are None while unknown."""

    position: int
    """The number of batches of the same organization whose lines go first on one of its models."""
    lines_per_second: float | None
    seconds_left: int | None


def store_outlooks(now: datetime) -> None:
    """Store the forecasts and turns of the batches, once those of one are SAMPLE_INTERVAL old."""
    running = Batch.objects.filter(status=BatchStatus.IN_PROGRESS)
    stored = list(running.values_list("outlook__at", flat=True))
    if any(at is None or now.timestamp() - at >= SAMPLE_INTERVAL for at in stored):
        outlook.refresh(now)


def store_samples(now: datetime) -> None:
    """Store a sample for every running batch whose last one is SAMPLE_INTERVAL seconds old. Samples
    of a pilot stay while its batch is held: they are the measured speed of its forecast."""
    at = now.timestamp()
    for batch in Batch.objects.filter(status=BatchStatus.IN_PROGRESS):
        if _is_due(batch, at):
            marks = [*batch.pace, [at, batch.done]][-MAX_SAMPLES:]
            Batch.objects.filter(id=batch.id).update(pace=marks)


def _is_due(batch: Batch, at: float) -> bool:
    if not batch.pace:
        return True
    since, done = batch.pace[-1]
    if batch.held and batch.done >= (batch.pilot or 0) + batch.refused:
        return bool(done != batch.done)
    return bool(at - since >= SAMPLE_INTERVAL)


def measure_progress(batch: Batch, now: datetime) -> Progress:
    others = Batch.objects.filter(
        organization_id=batch.organization_id, status=BatchStatus.IN_PROGRESS
    ).exclude(id=batch.id)
    others = others.only("model", "by_model", "outlook", "expires_at", "created_at")
    ahead = sum(
        any(
            make_turn(other, model) < make_turn(batch, model)
            for model in set(batch.model_ids).intersection(other.model_ids)
        )
        for other in others
    )
    return replace(measure_pace(batch, now), position=ahead)


def make_turn(batch: Batch, model: str) -> tuple[int, datetime, datetime]:
    """Return what orders the batches of an organization, as `outlook.refresh` stored it."""
    turns: dict[str, int] = (batch.outlook or {}).get("turns", {})
    return turns.get(model, 0), batch.expires_at, batch.created_at


def measure_pace(batch: Batch, now: datetime) -> Progress:
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
