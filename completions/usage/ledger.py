"""The usage ledger: one record per ended job, and hourly sums, exact even after a crash."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.db import transaction
from django.db.models import F

from completions.contract.json_lines import compress_lines
from completions.contract.usage import Usage
from completions.jobs.ended import EndedJob
from completions.models import ApiKey, JobStatus, Organization, StoredPrompt, UsageHour, UsageRecord
from completions.models.batches import parse_job_id
from completions.models.storable import replace_nul
from completions.models.usage import BOUNDS_MS, COUNTED, USAGE_COUNTS

_MAX_MS = 2**31 - 1
"""The maximum of a column: 25 days, which only a clock jump exceeds."""

_COUNTS = tuple(each.name for each in fields(Usage))


class _Cell(NamedTuple):
    """The key of one row of UsageHour."""

    organization_id: int
    api_key_id: int
    model: str
    adapter: str
    kind: str
    batch: str
    hour: datetime

    @classmethod
    def of(cls, row: UsageRecord | UsageHour, batch: str, hour: datetime) -> "_Cell":
        owner = row.organization_id, row.api_key_id
        return cls(*owner, row.model, row.adapter, row.kind, batch, hour)


def record(jobs: Sequence[EndedJob]) -> None:
    """Write the records of jobs that have none, and add them to the hourly sums.

    Runs in the caller's transaction. Raises IntegrityError if another process writes the same
    records at the same time.
    """
    by_id = {job.id: job for job in jobs}
    recorded = UsageRecord.objects.filter(job_id__in=by_id).values_list("job_id", flat=True)
    for job_id in recorded:
        del by_id[job_id]
    new = _select_owned(list(by_id.values()))
    records = [_record(job) for job in new]
    UsageRecord.objects.bulk_create(records)
    StoredPrompt.objects.bulk_create(
        [_prompt(job) for job in new if job.request], ignore_conflicts=True
    )
    add_up(records)


def _select_owned(jobs: Sequence[EndedJob]) -> list[EndedJob]:
    """Return the jobs whose key and organization still exist."""
    stored = ApiKey.objects.filter(id__in={job.api_key_id for job in jobs})
    keys = set(stored.values_list("id", flat=True))
    owners = Organization.objects.filter(id__in={job.organization_id for job in jobs})
    organizations = set(owners.values_list("id", flat=True))
    return [j for j in jobs if j.api_key_id in keys and j.organization_id in organizations]


def _record(job: EndedJob) -> UsageRecord:
    first = None if job.first is None else _milliseconds(job.first - job.created)
    waited = None if job.started is None else _milliseconds(job.started - job.created)
    ran = None if job.started is None else _milliseconds(job.finished - job.started)
    return UsageRecord(
        job_id=job.id,
        request_id=job.request_id,
        organization_id=job.organization_id,
        api_key_id=job.api_key_id,
        model=job.model,
        adapter=job.adapter,
        kind=job.kind,
        status=JobStatus(job.state),
        error_code=job.error.code if job.error else "",
        cancelled_by=job.cancelled_by if job.state == "cancelled" else "",
        cost_nanos=job.cost,
        queued_ms=waited,
        first_token_ms=first,
        run_ms=ran,
        attempts=job.attempt,
        worker=job.worker,
        parameters=replace_nul(job.parameters),
        created_at=datetime.fromtimestamp(job.created, UTC),
        finished_at=datetime.fromtimestamp(job.finished, UTC),
        **{name: getattr(job.usage, name) for name in _COUNTS if job.usage},
    )


def _prompt(job: EndedJob) -> StoredPrompt:
    return StoredPrompt(
        job_id=job.id,
        organization_id=job.organization_id,
        request=compress_lines([job.request]),
        events=compress_lines([job.context, *job.stream]) if job.context else None,
        created_at=datetime.fromtimestamp(job.created, UTC),
    )


def _milliseconds(seconds: float) -> int:
    return min(max(0, round(seconds * 1000)), _MAX_MS)


# Sums -------------------------------------------------------------------------------------------


def add_up(records: Iterable[UsageRecord]) -> None:
    """Add new records to their hours. Runs in the transaction that stores them."""
    sums: dict[_Cell, Counter[str]] = defaultdict(Counter)
    for each in records:
        hour = each.finished_at.replace(minute=0, second=0, microsecond=0)
        sums[_Cell.of(each, _find_batch(each), hour)].update(_counts(each))
    _add(sums)


def _find_batch(each: UsageRecord) -> str:
    """Return the batch of a line. An id of another form must not hold up the other jobs."""
    try:
        return parse_job_id(each.job_id)[0] if each.kind == "batch" else ""
    except ValueError:
        return ""


def _counts(each: UsageRecord) -> Counter[str]:
    counts = Counter(
        cost_nanos=each.cost_nanos, **{column.name: column.count(each) for column in USAGE_COUNTS}
    )
    if each.kind != "batch" and each.status == JobStatus.COMPLETED:
        counts[f"latency_{bisect_left(BOUNDS_MS, each.latency_ms)}"] += 1
        if each.first_token_ms is not None:
            counts[f"first_token_{bisect_left(BOUNDS_MS, each.first_token_ms)}"] += 1
    return counts


def _add(sums: Mapping[_Cell, Mapping[str, int]]) -> None:
    for cell in sorted(sums):  # in a fixed order, so that processes cannot deadlock
        row = UsageHour.objects.filter(**cell._asdict())
        more = {name: F(name) + count for name, count in sums[cell].items() if count}
        if not row.update(**more):
            UsageHour.objects.bulk_create([UsageHour(**cell._asdict())], ignore_conflicts=True)
            row.update(**more)


def fold(before: datetime) -> int:
    """Merge the hours of each day before `before` into its first. Returns the number of days."""
    folded = 0
    cut = before.replace(hour=0, minute=0, second=0, microsecond=0)
    unfolded = UsageHour.objects.filter(hour__lt=cut).exclude(hour__hour=0).order_by("hour")
    while (first := unfolded.first()) is not None:
        day = first.hour.replace(hour=0)
        with transaction.atomic():
            hours = UsageHour.objects.select_for_update().filter(
                hour__gt=day, hour__lt=day + timedelta(days=1)
            )
            sums: dict[_Cell, Counter[str]] = defaultdict(Counter)
            rows = list(hours)
            for row in rows:
                counts = {name: getattr(row, name) for name in COUNTED}
                sums[_Cell.of(row, row.batch, day)].update(counts)
            UsageHour.objects.filter(pk__in=[row.pk for row in rows]).delete()
            _add(sums)
        folded += 1
    return folded
