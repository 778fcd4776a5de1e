"""Batches: their progress, speed, expected end and failures."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import Count, QuerySet, Sum
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from completions.admin.base import ReadOnlyAdmin, acts, page
from completions.admin.display import NONE, ago, code, compact, exact, label, money, seconds
from completions.batches import lines, progress, states
from completions.errors import from_job_error
from completions.models import Batch, BatchStatus, File, UsageRecord

_LINES_NAMED = 12
"""Lines listed per error code, with links to their jobs."""
_CODES_SHOWN = 10


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    list_display = ["batch", "state", "owner", "model", "done", "rate", "left", "created"]
    list_display_links = None
    list_filter = ["status", "organization"]
    search_fields = ["id"]
    search_help_text = "The full id of a batch."
    ordering = ["-created_at"]
    sortable_by = ()
    show_full_result_count = True

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return (queryset.filter(id=term) if term else queryset), False

    def change_view(self, request: HttpRequest, object_id: str, *_: Any, **__: Any) -> HttpResponse:
        batch = self.get_object(request, object_id)
        if batch is None or not self.has_view_permission(request, batch):
            raise Http404(f"There is no batch {object_id}.")
        return _batch_page(request, batch)

    @admin.display(description="Batch")
    def batch(self, batch: Batch) -> SafeString:
        link = reverse("admin:completions_batch_change", args=[batch.pk])
        return code(batch.id, link)

    @admin.display(description="Status")
    def state(self, batch: Batch) -> SafeString:
        return label(batch.status)

    @admin.display(description="Lines done")
    def done(self, batch: Batch) -> SafeString:
        percent = round(100 * batch.done / batch.total) if batch.total else 0
        failed = f", {exact(batch.failed)} failed" if batch.failed else ""
        return format_html(
            '<span class="q-progress"><span class="q-bar"><i style="width:{}%"></i></span>'
            "{} / {}{}</span>",
            percent, exact(batch.done), exact(batch.total), failed,
        )  # fmt: skip

    @admin.display(description="Rate")
    def rate(self, batch: Batch) -> str:
        found = progress.of_pace(batch, timezone.now())
        return f"{compact(found.lines_per_second)}/s" if found.lines_per_second else NONE

    @admin.display(description="Left")
    def left(self, batch: Batch) -> str:
        return seconds(progress.of_pace(batch, timezone.now()).seconds_left)

    @admin.display(description="Created")
    def created(self, batch: Batch) -> str:
        return ago(batch.created_at, timezone.now())


def _batch_page(request: HttpRequest, batch: Batch) -> HttpResponse:
    now = timezone.now()
    pace = progress.of(batch, now) if not batch.ended else None
    used = _records(batch).aggregate(cost=Sum("cost_nanos"))
    can_cancel = batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
    context = {
        "batch": batch,
        "status_label": label(batch.status),
        "percent": round(100 * batch.done / batch.total, 1) if batch.total else 0,
        "failed_percent": round(100 * batch.failed / batch.total, 1) if batch.total else 0,
        "counts": [
            ("Lines", exact(batch.total), f"{exact(batch.completed)} completed"),
            ("Failed", exact(batch.failed), ""),
            ("Rate", f"{compact(pace.lines_per_second)}/s" if pace and pace.lines_per_second else
             NONE, "lines, last minute"),
            ("Left", seconds(pace.seconds_left if pace else None),
             f"{exact(pace.position)} batches before it" if pace and pace.position else ""),
            ("Tokens", compact(batch.prompt_tokens + batch.completion_tokens),
             f"{compact(batch.prompt_tokens)} in, {compact(batch.completion_tokens)} out"),
            ("Cost", money(used["cost"] or 0), ""),
        ],
        "facts": _facts(batch, now),
        "files": _files(batch),
        "line_errors": batch.errors[:50],
        "more_line_errors": max(0, len(batch.errors) - 50),
        "errors": _grouped_errors(batch),
        "may_cancel": can_cancel and request.user.has_perm("completions.change_batch"),
    }  # fmt: skip
    return page(request, "quire/batch.html", "Batch", context)


def _records(batch: Batch) -> QuerySet[UsageRecord]:
    """The usage of its ended lines. Their job ids are adjacent in the index."""
    prefix = batch.job_id(0)[:-1]
    return UsageRecord.objects.filter(job_id__gte=prefix, job_id__lt=f"{prefix}~").order_by()


def _grouped_errors(batch: Batch) -> list[dict[str, Any]]:
    """Group failed lines by error code, with some line numbers of each."""
    failed = _records(batch).filter(status="failed")
    codes = failed.values("error_code").annotate(count=Count("id"))
    grouped = []
    for row in codes.order_by("-count")[:_CODES_SHOWN]:
        code = row["error_code"]
        ids = failed.filter(error_code=code).values_list("job_id", flat=True)[:_LINES_NAMED]
        named = sorted((lines.place_of(job_id)[1], job_id) for job_id in ids)
        grouped.append(
            {
                "code": code or "unknown",
                "count": exact(row["count"]),
                "meaning": from_job_error(code).message,
                "lines": [(n, reverse("operations:job", args=[job_id])) for n, job_id in named],
                "more": max(0, row["count"] - len(named)),
            }
        )
    return grouped


def _facts(batch: Batch, now: Any) -> list[tuple[str, str, str]]:
    """Return (name, value, link) for each fact."""
    key = reverse("admin:completions_apikey_change", args=[batch.api_key_id])
    organization = reverse("admin:completions_organization_change", args=[batch.organization_id])
    moments = (
        ("Created", batch.created_at), ("Started", batch.in_progress_at),
        ("Finalizing since", batch.finalizing_at), ("Cancelled", batch.cancelling_at),
        ("Ended", batch.ended_at),
    )  # fmt: skip
    closes = "" if batch.ended else f", closes {ago(batch.expires_at, now)}"
    return [
        ("Organization", batch.organization.name, organization),
        ("API key", str(batch.api_key), key),
        ("Model", batch.model or NONE, ""),
        ("Endpoint", batch.endpoint, ""),
        ("Window", f"{batch.completion_window}{closes}", ""),
        *((name, f"{at:%Y-%m-%d %H:%M:%S} ({ago(at, now)})", "") for name, at in moments if at),
    ]


def _files(batch: Batch) -> list[tuple[str, str, str]]:
    """Return (name, id, link) for each file that exists."""
    ids = (
        ("Input", batch.input_file_id), ("Output", batch.output_file_id),
        ("Errors", batch.error_file_id),
    )  # fmt: skip
    there = set(
        File.objects.filter(id__in=[file_id for _, file_id in ids]).values_list("id", flat=True)
    )
    return [
        (name, file_id, reverse("admin:completions_file_change", args=[file_id]))
        for name, file_id in ids
        if file_id in there
    ]


@acts("change_batch")
def cancel(request: HttpRequest, batch_id: str) -> HttpResponseBase:
    """Send no more lines; the results so far are kept."""
    batch = get_object_or_404(Batch, pk=batch_id)
    if states.cancel(batch.id, timezone.now()):
        messages.success(
            request, "The batch sends no more lines. The results so far go to its files."
        )
    else:
        messages.warning(request, f"The batch is already {batch.status.replace('_', ' ')}.")
    return redirect("admin:completions_batch_change", batch.id)
