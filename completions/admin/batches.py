"""Batches with their progress, speed and failures, and the files that they read and write."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from completions.accounts import audit
from completions.accounts.audit import Actor
from completions.accounts.scope import may_manage, select_managed
from completions.admin.base import ReadOnlyAdmin, make_column, owner, render_page, require_change
from completions.admin.batch_outcome import (
    describe_again,
    group_errors,
    make_forecast,
    make_summary,
    sum_cost,
)
from completions.admin.display import (
    NONE,
    format_ago,
    format_compact,
    format_exact,
    format_money,
    format_seconds,
    format_size,
    make_code,
    make_label,
    make_two_lines,
)
from completions.admin.usage.panel import make_panel
from completions.admin.usage.periods import Span, find_midnight
from completions.admin.usage.view_state import Defaults
from completions.batches import progress, states
from completions.batches.planning import outlook
from completions.batches.progress import Progress
from completions.models import Batch, BatchStatus, File

_STARTED, _CANCELLED = "batch started", "batch cancelled"
"""What the audit trail calls these uses of a batch's key."""


@admin.register(File)
class FileAdmin(ReadOnlyAdmin):
    """The table of files. The content is the client's and is not shown."""

    empty_text = "Files are uploaded by POST /v1/files, and written at the end of batches."
    list_display = [
        make_column("Name", lambda file: file.filename),
        make_column("Id", lambda file: make_code(file.id)),
        owner,
        "purpose",
        make_column("Size", lambda file: format_size(file.bytes)),
        make_column("Created", lambda file: format_ago(file.created_at, timezone.now())),
        make_column(
            "Expires",
            lambda file: (
                format_ago(file.expires_at, timezone.now()) if file.expires_at else "never"
            ),
        ),
    ]
    list_filter = ["purpose", "organization"]
    search_fields = ["id", "filename"]
    exclude = ["content"]
    sortable_by = ()
    show_full_result_count = True


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    empty_text = "A batch is created here, by POST /v1/batches or by manage.py submit."
    list_display = [
        make_column("Batch", lambda batch: _show_name(batch)),
        make_column("Status", lambda batch: make_label(batch.status)),
        owner,
        "model",
        make_column("Lines done", lambda batch: _show_progress(batch)),
        make_column(
            "Rate", lambda batch: _format_rate(progress.measure_pace(batch, timezone.now()))
        ),
        make_column(
            "Left",
            lambda batch: format_seconds(progress.measure_pace(batch, timezone.now()).seconds_left),
        ),
        make_column("Created", lambda batch: format_ago(batch.created_at, timezone.now())),
    ]
    list_display_links = None
    list_filter = ["status", "organization"]
    search_fields = ["id"]
    search_help_text = "The full id of a batch, or a part of its name."
    ordering = ["-created_at"]
    sortable_by = ()
    show_full_result_count = True

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Batch], search_term: str
    ) -> tuple[QuerySet[Batch], bool]:
        term = search_term.strip()
        named = Q(id=term) | Q(metadata__name__icontains=term)
        return (queryset.filter(named) if term else queryset), False

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return request.user.has_perm("completions.change_batch")

    def add_view(self, request: HttpRequest, *_: object, **__: object) -> HttpResponse:
        return redirect("console:new-batch")

    def change_view(
        self, request: HttpRequest, object_id: str, *_: object, **__: object
    ) -> HttpResponse:
        batch = self.get_object(request, object_id)
        if batch is None or not self.has_view_permission(request, batch):
            raise Http404(f"There is no batch {object_id}.")
        return _show_batch(request, batch)


def _show_name(batch: Batch) -> SafeString:
    code = make_code(batch.id, _link("batch", batch.pk))
    return make_two_lines(batch.name, code) if batch.name else code


def _show_progress(batch: Batch) -> SafeString:
    percent = round(100 * batch.done / batch.total) if batch.total else 0
    failed = f", {format_exact(batch.failed)} failed" if batch.failed else ""
    return format_html(
        '<span class="q-progress"><span class="q-bar"><i style="width:{}%"></i></span>'
        "{} / {}{}</span>",
        percent,
        format_exact(batch.done),
        format_exact(batch.total),
        failed,
    )


def _format_rate(pace: Progress | None) -> str:
    return f"{format_compact(pace.lines_per_second)}/s" if pace and pace.lines_per_second else NONE


def _link(table: str, key: object) -> str:
    return reverse(f"admin:completions_{table}_change", args=[key])


def _show_batch(request: HttpRequest, batch: Batch) -> HttpResponse:
    now = timezone.now()
    pace = progress.measure_progress(batch, now) if not batch.has_ended else None
    spent = sum_cost(batch)
    may_change = request.user.has_perm("completions.change_batch") and may_manage(
        request.user, batch
    )
    is_running = batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
    context = {
        "batch": batch,
        "status_label": make_label(batch.status),
        "percent": round(100 * batch.done / batch.total, 1) if batch.total else 0,
        "failed_percent": round(100 * batch.failed / batch.total, 1) if batch.total else 0,
        "counts": [
            ("Lines", format_exact(batch.total), f"{format_exact(batch.completed)} completed"),
            ("Failed", format_exact(batch.failed), ""),
            ("Rate", _format_rate(pace), "lines, last minute"),
            (
                "Left",
                format_seconds(pace.seconds_left if pace else None),
                f"batches before it: {format_exact(pace.position)}"
                if pace and pace.position
                else "",
            ),
            (
                "Tokens",
                format_compact(batch.prompt_tokens + batch.completion_tokens),
                f"{format_compact(batch.prompt_tokens)} in, "
                f"{format_compact(batch.completion_tokens)} out",
            ),
            ("Cost", format_money(spent), ""),
        ],
        "facts": _list_facts(batch, now),
        "files": _list_files(batch),
        "line_errors": batch.errors[:50],
        "more_line_errors": max(0, len(batch.errors) - 50),
        "forecast": make_forecast(batch, now),
        "errors": group_errors(batch),
        "summary": make_summary(batch),
        "may_cancel": is_running and may_change,
        "may_start": batch.held and batch.status == BatchStatus.IN_PROGRESS and may_change,
        "again": describe_again(batch, spent) if may_change else "",
        **_make_usage(request, batch, now),
    }
    return render_page(request, "quire/batch.html", "Batch", context)


def _make_usage(request: HttpRequest, batch: Batch, now: datetime) -> dict[str, object]:
    """Return the panel of usage, over the days of the batch unless others are asked for."""
    ends = batch.ended_at or now
    days = Span(find_midnight(batch.created_at), find_midnight(ends) + timedelta(days=1))
    return make_panel(request, {"batch": batch.id}, Defaults(group="model", span=days))


def _list_facts(batch: Batch, now: Any) -> list[tuple[str, str, str]]:
    moments = (
        ("Created", batch.created_at),
        ("Started", batch.in_progress_at),
        ("Finalizing since", batch.finalizing_at),
        (_find_canceller(batch), batch.cancelling_at),
        ("Ended", batch.ended_at),
    )
    waits = batch.held and not batch.has_ended
    held = [("Held", "only its pilot runs until it is started", "")] if waits else []
    deadline = outlook.describe(batch)
    closes = "" if batch.has_ended else f", closes {format_ago(batch.expires_at, now)}"
    return [
        ("Organization", batch.organization.name, _link("organization", batch.organization_id)),
        ("API key", str(batch.api_key), _link("apikey", batch.api_key_id)),
        ("Model", ", ".join(batch.model_ids) or NONE, ""),
        ("Endpoint", batch.endpoint, ""),
        ("Window", f"{batch.completion_window}{closes}", ""),
        *_list_forecasts(deadline),
        *held,
        *_list_plan(batch),
        *(
            (name, f"{at:%Y-%m-%d %H:%M:%S} ({format_ago(at, now)})", "")
            for name, at in moments
            if at
        ),
    ]


def _find_canceller(batch: Batch) -> str:
    """Return by whom a batch was cancelled."""
    if batch.cancelling_at is None:
        return ""
    if actor := audit.find_user(batch.api_key, _CANCELLED, batch.id):
        return f"Cancelled by {actor}"
    revoked_at = batch.api_key.revoked_at
    is_revoked = revoked_at is not None and revoked_at <= batch.cancelling_at
    return f"Cancelled by {'the end of its key' if is_revoked else 'its client'}"


def _list_forecasts(deadline: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return when a batch will have ended, as it is forecast now and was when it was admitted."""
    forecasts = (("Forecast", deadline), ("Forecast at admission", deadline["admitted"]))
    return [
        (
            name,
            f"{outlook.format_percent(each['probability'])} in the window; with 90 % by "
            f"{outlook.format_time(each['done_by'])}",
            "",
        )
        for name, each in forecasts
        if each and each["done_by"] is not None
    ]


def _list_plan(batch: Batch) -> list[tuple[str, str, str]]:
    """Return what the line order is expected to save, and what it has saved so far."""
    plan = batch.plan or {}
    if plan.get("computed_tokens") is None:
        return []
    computed, in_file_order = plan["computed_tokens"], plan["file_order_tokens"]
    return [
        (
            "Prompt tokens to compute",
            f"{format_exact(computed)} of {format_exact(plan['prompt_tokens'])}",
            "",
        ),
        ("In file order", format_exact(in_file_order), ""),
        ("Computed so far", format_exact(batch.prompt_tokens - batch.cached_tokens), ""),
    ]


def _list_files(batch: Batch) -> list[tuple[str, str, str]]:
    """Return (name, id, link) for each readable file."""
    ids = (
        ("Input", batch.input_file_id),
        ("Output", batch.output_file_id),
        ("Errors", batch.error_file_id),
    )
    there = File.objects.readable(timezone.now()).in_bulk([file_id for _, file_id in ids])
    return [(name, file_id, _link("file", file_id)) for name, file_id in ids if file_id in there]


@require_change("change_batch", for_members=True)
def start(request: HttpRequest, batch_id: str) -> HttpResponseBase:
    """Run the lines that the pilot of a held batch left."""
    batch = _find_managed(request, batch_id)
    if states.start(batch.id, timezone.now()):
        audit.record_use(Actor.from_user(request.user), batch.api_key, _STARTED, batch.id)
        messages.success(request, "The batch runs all of its lines.")
    else:
        messages.warning(request, "The batch is not held.")
    return redirect("admin:completions_batch_change", batch.id)


@require_change("change_batch", for_members=True)
def cancel(request: HttpRequest, batch_id: str) -> HttpResponseBase:
    """Send no more lines; the results so far are kept."""
    batch = _find_managed(request, batch_id)
    if states.cancel(batch.id, timezone.now()):
        audit.record_use(Actor.from_user(request.user), batch.api_key, _CANCELLED, batch.id)
        messages.success(
            request, "The batch sends no more lines. The results so far go to its files."
        )
    else:
        messages.warning(request, f"The batch is already {batch.status.replace('_', ' ')}.")
    return redirect("admin:completions_batch_change", batch.id)


def _find_managed(request: HttpRequest, batch_id: str) -> Batch:
    managed = select_managed(Batch.objects.select_related("api_key"), request.user)
    return get_object_or_404(managed, pk=batch_id)
