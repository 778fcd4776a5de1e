"""How many tokens a second a model computes: of its latest batches, or else of its requests."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from completions.database.parts import parts
from completions.models import Batch, BatchStatus, JobStatus, UsageRecord

_BATCHES = 20
"""The number of latest ended batches from which a model's speed is measured."""
_MIN_TOKENS = 1000
"""The fewest tokens of a batch that counts towards the speed."""
_REQUESTS = 500
"""The number of latest requests from which it is measured otherwise."""
_MIN_LINES = 5
"""With so many lines of batches among them, other requests do not count: lines keep more of the
workers busy."""
_SAMPLES = 20
"""The most speeds that are measured of requests."""


class _Run(NamedTuple):
    """What a worker computed for one request, in Unix time."""

    began: float
    ended: float
    tokens: int


def measure_speeds(model: str, batch: Batch) -> list[float]:
    """Return speeds in computed tokens per second: of the latest batches of a model that completed,
    or else of the lines so far of a batch, if they all ask for it, or else of the model's requests;
    empty if it has run nothing."""
    own = _measure_own_speed(batch) if batch.model else []
    return _measure_batches(model) or own or measure_requests(model)


def _measure_batches(model: str) -> list[float]:
    """Measure the computed tokens per second of the latest batches of a model that completed."""
    ended = Batch.objects.filter(
        model=model,
        status=BatchStatus.COMPLETED,
        pilot=None,
        in_progress_at__isnull=False,
        finalizing_at__isnull=False,
    )
    speeds = []
    for batch in ended.order_by("-created_at")[:_BATCHES]:
        assert batch.in_progress_at is not None
        assert batch.finalizing_at is not None
        seconds = (batch.finalizing_at - batch.in_progress_at).total_seconds()
        tokens = batch.prompt_tokens - batch.cached_tokens + batch.completion_tokens
        if seconds > 0 and tokens >= _MIN_TOKENS:
            speeds.append(tokens / seconds)
    return speeds


def _measure_own_speed(batch: Batch) -> list[float]:
    """Measure the computed tokens per second of this batch's latest lines, if they have samples."""
    ran = batch.done - batch.refused
    if len(batch.pace) < 2 or ran <= 0:
        return []
    (since, before), (until, after) = batch.pace[0], batch.pace[-1]
    tokens = batch.prompt_tokens - batch.cached_tokens + batch.completion_tokens
    if after <= before or until <= since or not tokens:
        return []
    return [(after - before) / (until - since) * tokens / ran]


class Load(NamedTuple):
    """What the latest requests of a model took."""

    speed: float
    """Computed tokens a second, of all requests together."""
    tokens: float
    """Computed tokens of a request, on average."""
    seconds_per_token: float
    """Seconds of a request per completion token."""


def measure_load(model: str) -> Load | None:
    """Measure the latest requests that completed; None if the model has run nothing."""
    rows = _list_requests(model)
    speeds, completion = measure_requests(model), sum(row.completion_tokens for row in rows)
    if not speeds or not completion:
        return None
    runs = [_read_run(row) for row in rows]
    seconds = sum(run.ended - run.began for run in runs)
    return Load(fmean(speeds), fmean(run.tokens for run in runs), seconds / completion)


def _list_requests(model: str) -> list[UsageRecord]:
    """Return the latest requests that completed, by their end."""
    completed = UsageRecord.objects.filter(
        model=model, status=JobStatus.COMPLETED, run_ms__isnull=False
    )
    return list(completed.order_by("-finished_at")[:_REQUESTS])[::-1]


def measure_requests(model: str) -> list[float]:
    """Measure the speed of the latest requests that completed, while any of them ran."""
    rows = _list_requests(model)
    lines = [row for row in rows if row.kind == "batch"]
    return _divide([_read_run(row) for row in (lines if len(lines) >= _MIN_LINES else rows)])


def _read_run(row: UsageRecord) -> _Run:
    ended = row.finished_at.timestamp()
    tokens = row.prompt_tokens - row.cached_tokens + row.completion_tokens
    return _Run(ended - (row.run_ms or 0) / 1000, ended, tokens)


def _divide(runs: Sequence[_Run]) -> list[float]:
    """Return the speed of each part of the runs, which are ordered by their end: the tokens of
    those that ended in it by the seconds in which any ran."""
    if not runs:
        return []
    busy = _merge(runs)
    since, speeds = busy[0][0], []
    for part in parts(runs, -(-len(runs) // _SAMPLES)):
        until = part[-1].ended
        seconds = sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in busy)
        tokens = sum(run.tokens for run in part)
        if seconds > 0 and tokens:
            speeds.append(tokens / seconds)
        since = until
    return speeds


def _merge(runs: Sequence[_Run]) -> list[tuple[float, float]]:
    """Return the times in which any of the runs ran, in order."""
    busy: list[tuple[float, float]] = []
    for began, ended, _ in sorted(runs):
        if busy and began <= busy[-1][1]:
            busy[-1] = busy[-1][0], max(ended, busy[-1][1])
        else:
            busy.append((began, ended))
    return busy
