"""The usage ledger: one row per ended job, whatever crashes."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from completions.jobs.ended import EndedJob
from completions.models import ApiKey, JobStatus, Organization, UsageRecord


def record(jobs: Sequence[EndedJob]) -> None:
    """Write the rows of jobs that have none yet."""
    # A key or an organization deleted meanwhile takes its records with it.
    keys = set(
        ApiKey.objects.filter(id__in={j.api_key_id for j in jobs}).values_list("id", flat=True)
    )
    owners = {job.organization_id for job in jobs}
    organizations = set(Organization.objects.filter(id__in=owners).values_list("id", flat=True))
    UsageRecord.objects.bulk_create(
        [
            _record(job)
            for job in jobs
            if job.api_key_id in keys and job.organization_id in organizations
        ],
        ignore_conflicts=True,
    )


def _record(job: EndedJob) -> UsageRecord:
    waited = None if job.started is None else _milliseconds(job.started - job.created)
    ran = None if job.started is None else _milliseconds(job.finished - job.started)
    return UsageRecord(
        job_id=job.id,
        request_id=job.request_id,
        organization_id=job.organization_id,
        api_key_id=job.api_key_id,
        model=job.model,
        kind=job.kind,
        status=JobStatus(job.state),
        error_code=job.error.code if job.error else "",
        queued_ms=waited,
        run_ms=ran,
        created_at=datetime.fromtimestamp(job.created, UTC),
        finished_at=datetime.fromtimestamp(job.finished, UTC),
        **(asdict(job.usage) if job.usage else {}),
    )


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))
