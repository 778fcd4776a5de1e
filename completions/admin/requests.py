"""The table of ended requests, with filters and a search by id."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from completions.accounts.scope import Viewer, sees_organization, select_seen
from completions.admin.base import EndlessPaginator, ReadOnlyAdmin, make_column, owner
from completions.admin.display import (
    format_ago,
    format_compact,
    format_milliseconds,
    format_money,
    make_code,
    make_label,
    make_two_lines,
)
from completions.admin.live import state
from completions.catalog import model_files
from completions.jobs import operate
from completions.jobs.sharding.shards import run_each
from completions.models import Job, JobStatus, UsageRecord
from completions.models.usage import LATENCY_MS

Choices = list[tuple[str, str]]


def find_job(typed: str, user: Viewer) -> Iterator[tuple[str, str]]:
    """Find jobs that the user sees by job id or by the response's `x-request-id`. Yields (job id,
    description)."""
    seen = set()
    records = UsageRecord.objects.filter(Q(job_id=typed) | Q(request_id=typed))
    for record in select_seen(records, user)[:8]:
        seen.add(record.job_id)
        error = f", {record.error_code}" if record.error_code else ""
        yield record.job_id, f"Request, {record.status}{error}"
    stored = select_seen(Job.objects.filter(id=typed), user)
    for job_id in stored.values_list("id", flat=True):
        if job_id not in seen:
            seen.add(job_id)
            yield job_id, "Background job"
    try:
        with state.open_shards() as shards:
            found = run_each(shards, lambda store: operate.find_jobs(store, typed))
            for job in chain.from_iterable(found):
                if job.id not in seen and sees_organization(user, job.organization_id):
                    yield job.id, f"Request, {job.state}"
    except state.UnreachableError:
        return


class _Filter(admin.SimpleListFilter):
    """A filter over a fixed list of values, so listing them needs no query."""

    values: Choices = []

    def lookups(self, request: HttpRequest, model_admin: object) -> Choices:
        return self.values

    def queryset(self, request: object, queryset: QuerySet[UsageRecord]) -> QuerySet[UsageRecord]:
        value = self.value()
        if not value:
            return queryset
        if value not in dict(self.lookup_choices):
            raise IncorrectLookupParameters
        return self.filter_rows(queryset, value)

    def filter_rows(self, rows: QuerySet[UsageRecord], value: str) -> QuerySet[UsageRecord]:
        return rows.filter(**{self.parameter_name or "": value})


class StatusFilter(_Filter):
    title = parameter_name = "status"
    values = [(s.value, s.value) for s in JobStatus if s != JobStatus.QUEUED]


class ModelFilter(_Filter):
    title = parameter_name = "model"

    def lookups(self, request: HttpRequest, model_admin: object) -> Choices:
        names = [entry.id for entry in model_files.load_catalog()]
        model = request.GET.get("model")
        return [(n, n) for n in (*names, *([model] if model and model not in names else []))]


class EndedFilter(_Filter):
    title = parameter_name = "ended"
    values = [("1", "last hour"), ("24", "last 24 hours"), ("168", "last 7 days")]

    def filter_rows(self, rows: QuerySet[UsageRecord], value: str) -> QuerySet[UsageRecord]:
        return rows.filter(finished_at__gte=timezone.now() - timedelta(hours=int(value)))


class LatencyFilter(_Filter):
    """Filter of the last day by latency. No index covers latency, so the scan is limited to a
    day."""

    title, parameter_name = "slow in the last 24 hours", "slower"
    values = [("1", "over 1 s"), ("5", "over 5 s"), ("30", "over 30 s"), ("120", "over 2 min")]

    def filter_rows(self, rows: QuerySet[UsageRecord], value: str) -> QuerySet[UsageRecord]:
        day = rows.filter(finished_at__gte=timezone.now() - timedelta(days=1))
        timed = day.annotate(latency=LATENCY_MS)
        return timed.filter(latency__gt=1000 * int(value))


tokens = make_column(
    "Tokens in / out",
    lambda row: f"{format_compact(row.prompt_tokens)} / {format_compact(row.completion_tokens)}",
)
cost = make_column("Cost", lambda row: format_money(row.cost_nanos))


@admin.register(UsageRecord)
class RequestAdmin(ReadOnlyAdmin):
    empty_text = "A request is listed within seconds of its end. Live jobs has those that run."
    list_display = [
        make_column(
            "Request",
            lambda record: make_code(
                record.job_id, reverse("operations:job", args=[record.job_id])
            ),
        ),
        make_column("Ended", lambda record: _show_moment(record.finished_at)),
        make_column(
            "Status", lambda record: make_two_lines(make_label(record.status), record.error_code)
        ),
        owner,
        make_column(
            "Model", lambda record: make_two_lines(record.model, f"{record.kind} {record.adapter}")
        ),
        tokens,
        make_column("First token", lambda record: format_milliseconds(record.first_token_ms)),
        make_column("Took", lambda record: format_milliseconds(record.latency_ms)),
        cost,
    ]
    list_display_links = None
    list_filter = [StatusFilter, ModelFilter, EndedFilter, LatencyFilter, "organization"]
    linked_lookups = ("api_key", "error_code", "kind")
    list_per_page = 50
    ordering = ["-finished_at"]
    search_fields = ["job_id"]
    search_help_text = "The id of a job, or an x-request-id."
    paginator = EndlessPaginator

    def changelist_view(
        self, request: HttpRequest, extra_context: Mapping[str, object] | None = None
    ) -> HttpResponse:
        return super().changelist_view(request, {**(extra_context or {}), "title": "Requests"})

    def change_view(
        self, request: HttpRequest, object_id: str, *_: object, **__: object
    ) -> HttpResponse:
        record = self.get_object(request, object_id)
        if record is None:
            return redirect("admin:completions_usagerecord_changelist")
        return redirect("operations:job", record.job_id)

    def get_queryset(self, request: HttpRequest) -> QuerySet[UsageRecord]:
        return super().get_queryset(request).defer("parameters")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[UsageRecord], search_term: str
    ) -> tuple[QuerySet[UsageRecord], bool]:
        """Search full ids only: a substring search would scan the whole table."""
        if term := search_term.strip():
            queryset = queryset.filter(Q(job_id=term) | Q(request_id=term))
        return queryset, False


def _show_moment(at: datetime) -> SafeString:
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        at.isoformat(),
        f"{at:%Y-%m-%d %H:%M:%S}",
        format_ago(at, timezone.now()),
    )
