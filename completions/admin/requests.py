"""The table of ended requests, with filters and a search by id."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from completions.admin import state
from completions.admin.base import EndlessPaginator, ReadOnlyAdmin
from completions.admin.display import ago, code, compact, label, milliseconds, money, two
from completions.catalog import model_files
from completions.jobs import operate
from completions.models import Job, JobStatus, UsageRecord
from completions.models.usage import LATENCY_MS

Choices = list[tuple[str, str]]


def find_job(typed: str) -> Iterator[tuple[str, str]]:
    """Find jobs by job id or by the response's `x-request-id`. Yields (job id, description)."""
    known = set()
    for record in UsageRecord.objects.filter(Q(job_id=typed) | Q(request_id=typed))[:8]:
        known.add(record.job_id)
        error = f", {record.error_code}" if record.error_code else ""
        yield record.job_id, f"Request, {record.status}{error}"
    for job_id in Job.objects.filter(id=typed).values_list("id", flat=True):
        if job_id not in known:
            known.add(job_id)
            yield job_id, "Background job"
    try:
        with state.client() as client:
            for job in operate.find(client, settings.REDIS_PREFIX, typed):
                if job.id not in known:
                    yield job.id, f"Request, {job.state}"
    except state.UnreachableError:
        return


class _ChosenFilter(admin.SimpleListFilter):
    """A filter over a fixed list of values, which needs no query to list them."""

    def queryset(self, request: Any, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(**{self.parameter_name or "": value}) if value else queryset


class StatusFilter(_ChosenFilter):
    title = parameter_name = "status"

    def lookups(self, request: Any, model_admin: Any) -> Choices:
        return [(s.value, s.value) for s in JobStatus if s != JobStatus.QUEUED]


class ModelFilter(_ChosenFilter):
    title = parameter_name = "model"

    def lookups(self, request: Any, model_admin: Any) -> Choices:
        names = [entry.id for entry in model_files.served_models()]
        asked = request.GET.get("model")
        return [(n, n) for n in (*names, *([asked] if asked and asked not in names else []))]


class EndedFilter(admin.SimpleListFilter):
    title = parameter_name = "ended"
    hours = (("1", "last hour"), ("24", "last 24 hours"), ("168", "last 7 days"))

    def lookups(self, request: Any, model_admin: Any) -> Choices:
        return list(self.hours)

    def queryset(self, request: Any, queryset: QuerySet[Any]) -> QuerySet[Any]:
        hours = self.value()
        if hours is None or hours not in dict(self.hours):
            return queryset
        return queryset.filter(finished_at__gte=timezone.now() - timedelta(hours=int(hours)))


class LatencyFilter(admin.SimpleListFilter):
    """Filters the last day by latency. No index covers latency, so the day bounds the scan."""

    title, parameter_name = "slow in the last 24 hours", "slower"
    seconds = (("1", "over 1 s"), ("5", "over 5 s"), ("30", "over 30 s"), ("120", "over 2 min"))

    def lookups(self, request: Any, model_admin: Any) -> Choices:
        return list(self.seconds)

    def queryset(self, request: Any, queryset: QuerySet[Any]) -> QuerySet[Any]:
        seconds = self.value()
        if seconds is None or seconds not in dict(self.seconds):
            return queryset
        day = queryset.filter(finished_at__gte=timezone.now() - timedelta(days=1))
        timed: QuerySet[Any] = day.annotate(latency=LATENCY_MS)
        return timed.filter(latency__gt=1000 * int(seconds))


@admin.register(UsageRecord)
class RequestAdmin(ReadOnlyAdmin):
    list_display = [
        "job", "ended", "outcome", "owner", "what", "tokens", "first_token", "took", "costs",
    ]  # fmt: skip
    list_display_links = None
    list_filter = [
        StatusFilter,
        ModelFilter,
        EndedFilter,
        LatencyFilter,
        "organization",
    ]
    list_per_page = 50
    ordering = ["-finished_at"]
    sortable_by = ()
    search_fields = ["job_id"]
    search_help_text = "The id of a completion, or the x-request-id of a response."
    paginator = EndlessPaginator

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        return super().changelist_view(request, {**(extra_context or {}), "title": "Requests"})

    def change_view(self, request: HttpRequest, object_id: str, *_: Any, **__: Any) -> HttpResponse:
        record = self.get_object(request, object_id)
        if record is None:
            return redirect("admin:completions_usagerecord_changelist")
        return redirect("operations:job", record.job_id)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("parameters")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search full ids only: a search for parts would scan the whole table."""
        if term := search_term.strip():
            queryset = queryset.filter(Q(job_id=term) | Q(request_id=term))
        return queryset, False

    @admin.display(description="Request")
    def job(self, record: UsageRecord) -> SafeString:
        link = reverse("operations:job", args=[record.job_id])
        return code(record.job_id, link)

    @admin.display(description="Status")
    def outcome(self, record: UsageRecord) -> SafeString:
        return two(label(record.status), record.error_code)

    @admin.display(description="Model")
    def what(self, record: UsageRecord) -> SafeString:
        return two(record.model, f"{record.kind} {record.adapter}")

    @admin.display(description="Tokens in / out")
    def tokens(self, record: UsageRecord) -> str:
        return f"{compact(record.prompt_tokens)} / {compact(record.completion_tokens)}"

    @admin.display(description="First token")
    def first_token(self, record: UsageRecord) -> str:
        return milliseconds(record.first_token_ms)

    @admin.display(description="Took")
    def took(self, record: UsageRecord) -> str:
        return milliseconds(record.latency_ms)

    @admin.display(description="Cost")
    def costs(self, record: UsageRecord) -> str:
        return money(record.cost_nanos)

    @admin.display(description="Ended")
    def ended(self, record: UsageRecord) -> SafeString:
        return format_html(
            '<time datetime="{}" title="{} UTC">{}</time>',
            record.finished_at.isoformat(), f"{record.finished_at:%Y-%m-%d %H:%M:%S}",
            ago(record.finished_at, timezone.now()),
        )  # fmt: skip
