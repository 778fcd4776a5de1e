"""When a background job will have ended: from the jobs before it and the speed of its model."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from django.db.models import Count
from django.utils import timezone

from completions.batches.planning.outlook import Forecast, explain_late, round_probability
from completions.batches.planning.speeds import Load, measure_load
from completions.batches.planning.windows import MAX_ERRORS, Errors, expect
from completions.exceptions import APIError
from completions.jobs.new_job import Level, NewJob
from completions.models import BatchLine, Job, JobStatus, LineState


@dataclass
class Admission:
    """The forecast of a background job. It is made under the lock of the organization, so it counts
    the jobs sent at the same time."""

    due: datetime
    refuses_late: bool
    load: Load | None
    """None while its model has run nothing."""
    errors: Errors
    forecast: Forecast | None = None
    """Once it is made."""

    @classmethod
    def measure(cls, job: NewJob, refuses_late: bool, now: datetime) -> "Admission":
        load = measure_load(job.model)
        errors = Errors() if load is None else _measure_errors(job.model, now)
        return cls(now + timedelta(seconds=job.seconds), refuses_late, load, errors)

    def make_promise(self, job: NewJob) -> dict[str, object] | None:
        """Make the forecast, for SQL. Raises APIError for a job that would probably end after its
        deadline, if its request asks for that."""
        if self.load is None:
            return None
        now = timezone.now()
        own = job.request.max_completion_tokens * self.load.seconds_per_token
        before = _count_before(job, now + timedelta(seconds=job.seconds))
        seconds = own + before * self.load.tokens / self.load.speed
        outlook = expect(seconds, self.due.timestamp(), self.errors, now.timestamp())
        self.forecast = Forecast(outlook.is_in_time, *outlook)
        if self.refuses_late and not outlook.is_in_time:
            message = explain_late(self.forecast, self.due)
            raise APIError("window_too_short", message, "completion_window")
        return self.forecast.to_json(now)

    def show(self) -> dict[str, object]:
        """Return the extension `deadline` of the answer to the job."""
        found = self.forecast
        return {
            "ends_at": int(self.due.timestamp()),
            "done_by": found and ceil(found.done_by),
            "probability": found and round_probability(found.probability),
        }


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
