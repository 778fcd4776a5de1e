"""When a background job will have ended: from the jobs before it and the speed of its model."""

from datetime import UTC, datetime, timedelta
from math import ceil

from django.db.models import Count

from completions.batches.planning.outlook import Forecast, explain_late, round_probability
from completions.batches.planning.speeds import measure_load
from completions.batches.planning.windows import MAX_ERRORS, Errors, expect
from completions.exceptions import APIError
from completions.jobs.new_job import Level, NewJob
from completions.models import BatchLine, Job, JobStatus, LineState


def forecast_job(job: NewJob, now: datetime) -> Forecast | None:
    """Forecast the end of a background job; None while its model has run nothing."""
    load = measure_load(job.model)
    if load is None:
        return None
    due = now + timedelta(seconds=job.seconds)
    own = job.request.max_completion_tokens * load.seconds_per_token
    seconds = own + _count_before(job, due) * load.tokens / load.speed
    outlook = expect(seconds, due.timestamp(), _measure_errors(job.model, now), now.timestamp())
    return Forecast(outlook.is_in_time, *outlook)


def _count_before(job: NewJob, due: datetime) -> int:
    """Count the requests that go first: what its organization sent with an earlier deadline, and as
    much of each other organization, since they take turns; for a flexible job also the lines that
    wait with it."""
    waiting = Job.objects.filter(model=job.model, kind="background", status=JobStatus.QUEUED)
    before = waiting.filter(organization_id=job.organization_id, deadline_at__lte=due).count()
    if job.level == Level.BATCH:
        lines = BatchLine.objects.filter(model=job.model, state=LineState.SENT)
        before += lines.filter(batch__organization_id=job.organization_id).count()
    others = waiting.exclude(organization_id=job.organization_id).order_by()
    counts = others.values("organization_id").annotate(count=Count("id"))
    return before + sum(min(count, before + 1) for count in counts.values_list("count", flat=True))


def _measure_errors(model: str, now: datetime) -> Errors:
    """Measure the errors of the latest forecasts of jobs for a model: of those that have ended, and
    those that already take longer."""
    known = Job.objects.filter(model=model, promise__isnull=False)
    rows = known.exclude(status=JobStatus.CANCELLED).order_by("-created_at")
    ratios = []
    for made_at, ended_at, promise in rows.values_list("created_at", "finished_at", "promise")[
        :MAX_ERRORS
    ]:
        if promise is None:
            continue
        took = ((ended_at or now) - made_at).total_seconds()
        if ended_at is not None or took > promise["seconds"]:
            ratios.append(Errors.measure(promise["seconds"], took))
    return Errors(ratios)


def require_in_time(forecast: Forecast, job: NewJob, now: datetime) -> None:
    """Raise APIError for a job that will probably end after its deadline."""
    if not forecast.is_in_time:
        message = explain_late(forecast, now + timedelta(seconds=job.seconds))
        raise APIError("window_too_short", message, "completion_window")


def show(forecast: Forecast | None, job: NewJob, now: datetime) -> dict[str, object]:
    """Return the extension `deadline` of the answer to a background job."""
    due = now + timedelta(seconds=job.seconds)
    return {
        "ends_at": int(due.astimezone(UTC).timestamp()),
        "done_by": forecast and ceil(forecast.done_by),
        "probability": forecast and round_probability(forecast.probability),
    }
