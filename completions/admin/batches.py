"""Batches with their progress, speed and failures, and the files that they read and write."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import Count, QuerySet, Sum
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from completions.admin.base import ReadOnlyAdmin, acts, column, owner, page
from completions.admin.display import NONE, ago, code, compact, exact, label, money, seconds, size
from completions.batches import lines, progress, states
from completions.batches.progress import Progress
from completions.batches.summary import Summary
from completions.chat.tools import dump
from completions.models import Batch, BatchStatus, File, UsageRecord

_LINES_NAMED = 12
"""Lines listed per error code, with links to their jobs."""
_CODES_SHOWN = 10


@admin.register(File)
class FileAdmin(ReadOnlyAdmin):
    """The table of files. The content is the client's and is not shown."""

    list_display = [
        column("Name", lambda file: file.filename),
        column("Id", lambda file: code(file.id)),
        owner,
        "purpose",
        column("Size", lambda file: size(file.bytes)),
        column("Created", lambda file: ago(file.created_at, timezone.now())),
        column(
            "Expires",
            lambda file: ago(file.expires_at, timezone.now()) if file.expires_at else "never",
        ),
    ]
    list_filter = ["purpose", "organization"]
    search_fields = ["id", "filename"]
    exclude = ["content"]
    sortable_by = ()
    show_full_result_count = True


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    list_display = [
        column("Batch", lambda batch: code(batch.id, _link("batch", batch.pk))),
        column("Status", lambda batch: label(batch.status)),
        owner,
        "model",
        column("Lines done", lambda batch: _done(batch)),
        column("Rate", lambda batch: _rate(progress.measure_pace(batch, timezone.now()))),
        column(
            "Left", lambda batch: seconds(progress.measure_pace(batch, timezone.now()).seconds_left)
        ),
        column("Created", lambda batch: ago(batch.created_at, timezone.now())),
    ]
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


def _done(batch: Batch) -> SafeString:
    percent = round(100 * batch.done / batch.total) if batch.total else 0
    failed = f", {exact(batch.failed)} failed" if batch.failed else ""
    return format_html(
        '<span class="q-progress"><span class="q-bar"><i style="width:{}%"></i></span>'
        "{} / {}{}</span>",
        percent, exact(batch.done), exact(batch.total), failed,
    )  # fmt: skip


def _rate(pace: Progress | None) -> str:
    return f"{compact(pace.lines_per_second)}/s" if pace and pace.lines_per_second else NONE


def _link(table: str, key: Any) -> str:
    return reverse(f"admin:completions_{table}_change", args=[key])


def _batch_page(request: HttpRequest, batch: Batch) -> HttpResponse:
    now = timezone.now()
    pace = progress.measure_progress(batch, now) if not batch.has_ended else None
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
            ("Rate", _rate(pace), "lines, last minute"),
            ("Left", seconds(pace.seconds_left if pace else None),
             f"batches before it: {exact(pace.position)}" if pace and pace.position else ""),
            ("Tokens", compact(batch.prompt_tokens + batch.completion_tokens),
             f"{compact(batch.prompt_tokens)} in, {compact(batch.completion_tokens)} out"),
            ("Cost", money(used["cost"] or 0), ""),
        ],
        "facts": _facts(batch, now),
        "files": _files(batch),
        "line_errors": batch.errors[:50],
        "more_line_errors": max(0, len(batch.errors) - 50),
        "errors": _grouped_errors(batch),
        "summary": _summary(batch),
        "may_cancel": can_cancel and request.user.has_perm("completions.change_batch"),
    }  # fmt: skip
    return page(request, "quire/batch.html", "Batch", context)


def _records(batch: Batch) -> QuerySet[UsageRecord]:
    """The usage of the batch's ended lines. Their job ids are adjacent in the index."""
    return UsageRecord.objects.filter(job_id__range=batch.job_ids).order_by()


def _grouped_errors(batch: Batch) -> list[dict[str, Any]]:
    """Group failed lines by error code, with some line numbers of each."""
    failed = _records(batch).filter(status="failed")
    counted = failed.values_list("error_code").annotate(count=Count("id"))
    codes = {**dict(counted), **batch.summary.get("errors", {})}  # includes refused lines
    grouped = []
    for name in sorted(codes, key=codes.__getitem__, reverse=True)[:_CODES_SHOWN]:
        ids = failed.filter(error_code=name).values_list("job_id", flat=True)[:_LINES_NAMED]
        named = sorted((lines.parse_job_id(job_id)[1], job_id) for job_id in ids)
        grouped.append(
            {
                "code": name or "unknown",
                "count": exact(codes[name]),
                "meaning": lines.explain_error(name),
                "lines": [(n, reverse("operations:job", args=[job_id])) for n, job_id in named],
                "more": max(0, codes[name] - len(named)),
            }
        )
    return grouped


def _summary(batch: Batch) -> dict[str, Any] | None:
    """Aggregates of the results, as tables for the page; None before the first result."""
    if not batch.summary:
        return None
    shown = Summary(batch.counted_fields, batch.summary).as_summary()
    numbers = [
        (name, *(compact(shown[key][each]) for each in _QUANTILES))
        for key, name in _NUMBERS
        if shown[key] is not None
    ]
    fields = [
        (pointer or "/", [(dump(each["value"]), exact(each["count"])) for each in found])
        for pointer, found in shown.get("values", {}).items()
    ]
    ends = [(name, exact(count)) for name, count in shown["finish_reasons"].items()]
    cut = [(pointer or "/", exact(count)) for pointer, count in shown.get("cut", {}).items()]
    return {"numbers": numbers, "fields": fields, "ends": ends, "cut": cut}


_QUANTILES = ("mean", "p50", "p90", "p99", "max")
_NUMBERS = (
    ("queue_seconds", "seconds in the queue"), ("run_seconds", "seconds with a worker"),
    ("prompt_tokens", "prompt tokens"), ("completion_tokens", "completion tokens"),
)  # fmt: skip


def _facts(batch: Batch, now: Any) -> list[tuple[str, str, str]]:
    moments = (
        ("Created", batch.created_at), ("Started", batch.in_progress_at),
        ("Finalizing since", batch.finalizing_at), ("Cancelled", batch.cancelling_at),
        ("Ended", batch.ended_at),
    )  # fmt: skip
    waits = batch.held and not batch.has_ended
    held = [("Held", "only its pilot runs until it is started", "")] if waits else []
    closes = "" if batch.has_ended else f", closes {ago(batch.expires_at, now)}"
    return [
        ("Organization", batch.organization.name, _link("organization", batch.organization_id)),
        ("API key", str(batch.api_key), _link("apikey", batch.api_key_id)),
        ("Model", batch.model or NONE, ""),
        ("Endpoint", batch.endpoint, ""),
        ("Window", f"{batch.completion_window}{closes}", ""),
        *held,
        *_plan(batch),
        *((name, f"{at:%Y-%m-%d %H:%M:%S} ({ago(at, now)})", "") for name, at in moments if at),
    ]


def _plan(batch: Batch) -> list[tuple[str, str, str]]:
    """What the line order is expected to save, and what it has saved so far."""
    plan = batch.plan or {}
    if plan.get("computed_tokens") is None:
        return []
    computed, in_file_order = plan["computed_tokens"], plan["file_order_tokens"]
    return [
        ("Prompt tokens to compute", f"{exact(computed)} of {exact(plan['prompt_tokens'])}", ""),
        ("In file order", exact(in_file_order), ""),
        ("Computed so far", exact(batch.prompt_tokens - batch.cached_tokens), ""),
    ]


def _files(batch: Batch) -> list[tuple[str, str, str]]:
    """Return (name, id, link) for each readable file."""
    ids = (
        ("Input", batch.input_file_id), ("Output", batch.output_file_id),
        ("Errors", batch.error_file_id),
    )  # fmt: skip
    there = File.objects.readable(timezone.now()).in_bulk([file_id for _, file_id in ids])
    return [(name, file_id, _link("file", file_id)) for name, file_id in ids if file_id in there]


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
