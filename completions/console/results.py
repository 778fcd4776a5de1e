"""The results of an ended batch: show each line beside its request, filter, download, resubmit."""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone

from completions.accounts import audit
from completions.accounts.audit import Actor
from completions.accounts.scope import may_manage, select_managed, select_seen
from completions.admin.base import render_page, require_change, require_view
from completions.admin.display import format_exact, make_label
from completions.batches import files, lines, resubmission
from completions.batches.input_lines import decode_line
from completions.batches.results import search
from completions.batches.results.answers import list_choices
from completions.batches.results.search import Contents, Criteria
from completions.console.acting import require_usable
from completions.endpoints import batches
from completions.endpoints.files import make_storage_error
from completions.exceptions import APIError
from completions.models import AuditAction, Batch, BatchResult, File, Scope
from completions.models.release import release

PAGE = 50
SECONDS = 0.12
"""Seconds that one page searches for a text."""
_PREVIEW = 160
"""Characters of an answer in the table."""
_STATUS = {"completed": True, "failed": False}


@require_view("view_batch", for_members=True)
def show_results(request: HttpRequest, batch_id: str) -> HttpResponseBase:
    batch = _find(select_seen(Batch.objects.all(), request.user), batch_id)
    filters, after = _parse_search(request, batch), _parse_number(request.GET.get("after", ""))
    with Contents(batch) as contents:
        matches = search.find_page(batch, filters, contents, after, PAGE, SECONDS)
        is_shown = batch.organization.store_prompts
        rows = [_make_row(row, text if is_shown else b"") for row, text in matches.lines]
    grouped = search.count_results(batch)
    form = {name: request.GET.get(name, "") for name in ("status", "reason", "text")}
    query = {name: value for name, value in form.items() if value}
    context = {
        "batch": batch,
        "rows": rows,
        "found": matches,
        "after": after,
        "shown": is_shown,
        "total": format_exact(sum(count for _, _, count in grouped)),
        "statuses": [
            (name, sum(n for completed, _, n in grouped if completed == value))
            for name, value in _STATUS.items()
        ],
        "reasons": [(reason, format_exact(count), done) for done, reason, count in grouped],
        "asked": form,
        "query": urlencode(query),
        "next": urlencode({**query, "after": matches.searched}),
        "indexed": bool(grouped),
        "may_act": request.user.has_perm("completions.change_batch")
        and may_manage(request.user, batch),
    }
    return render_page(request, "quire/results.html", "Results", context)


@require_view("view_batch", for_members=True)
def show_line(request: HttpRequest, batch_id: str, number: int) -> HttpResponseBase:
    """Return the request and the output of one line as JSON; null for what is gone."""
    batch = _find(select_seen(Batch.objects.all(), request.user), batch_id)
    _require_shown(batch)
    row = get_object_or_404(BatchResult, batch=batch, number=number)
    with Contents(batch) as contents:
        sent, output = contents.read_request(row), contents.read_outputs([row])[0]
    return JsonResponse({"request": _parse_json(sent), "output": _parse_json(output)})


@require_view("view_batch", for_members=True)
def download(request: HttpRequest, batch_id: str) -> HttpResponseBase:
    """Return the output lines that the filter finds, as JSONL."""
    batch = _find(select_seen(Batch.objects.all(), request.user), batch_id)
    _require_shown(batch)
    filters = _parse_search(request, batch)

    async def read() -> AsyncIterator[bytes]:
        with await sync_to_async(Contents)(batch) as contents:
            rest = search.iterate_outputs(batch, filters, contents)
            while piece := await files.read_next_piece(rest):
                await release()
                yield piece

    return StreamingHttpResponse(
        read(),
        content_type="application/jsonl",
        headers={"Content-Disposition": f'attachment; filename="{batch.id}_filtered.jsonl"'},
    )


@require_change("change_batch", for_members=True)
def resubmit(request: HttpRequest, batch_id: str) -> HttpResponseBase:
    """Create a batch of the requests whose results the filter finds, under this batch's key."""
    batch = _find(select_managed(Batch.objects.all(), request.user), batch_id)
    back = redirect("console:results", batch.id)
    if not File.objects.readable(timezone.now()).filter(id=batch.input_file_id).exists():
        messages.error(request, "Nothing was sent: the input file was deleted or has expired.")
        return back
    try:
        principal = require_usable(batch.api_key)
        if Scope.BATCHES not in principal.scopes:
            raise APIError("permission_denied", "The key of this batch lacks the scope batches.")
        with Contents(batch) as contents:
            sent = search.iterate_requests(batch, _parse_search(request, batch), contents)
            try:
                again, file = resubmission.copy_batch(batch, sent)
            except files.StorageLimitError as error:
                raise make_storage_error(error, "id") from error
            except files.FileLostError as error:
                raise APIError("internal_error", str(error)) from error
        if not file.bytes:
            file.delete()
            messages.warning(request, "Nothing was sent: no line matches.")
            return back
        # Before the batch is stored: what an operator sends as a key is always in the audit trail.
        audit.record(
            Actor.from_user(request.user),
            AuditAction.USED,
            batch.api_key,
            {"batch": [batch.id, again.id]},
        )
        batches.store_again(again, file, principal)
    except APIError as error:
        messages.error(request, f"Nothing was sent. {error.message}")
        return back
    messages.success(request, f"This batch sends lines of {batch.id} again.")
    return redirect("admin:completions_batch_change", again.id)


def _find(batches: QuerySet[Batch], batch_id: str) -> Batch:
    return get_object_or_404(batches.select_related("organization", "api_key"), pk=batch_id)


def _require_shown(batch: Batch) -> None:
    if not batch.organization.store_prompts:
        raise Http404("The texts of this organization are not shown.")


def _parse_search(request: HttpRequest, batch: Batch) -> Criteria:
    query = request.GET
    text = query.get("text", "") if batch.organization.store_prompts else ""
    return Criteria(_STATUS.get(query.get("status", "")), query.get("reason", ""), text)


def _parse_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _make_row(row: BatchResult, text: bytes) -> dict[str, object]:
    output = _parse_json(text) or {}
    return {
        "number": row.number,
        "label": make_label("completed" if row.completed else "failed"),
        "reason": row.reason,
        "custom_id": output.get("custom_id", ""),
        "preview": _shorten(output),
    }


def _shorten(output: dict[str, object]) -> str:
    """Return the answer's text, or the error's message."""
    if error := lines.get_error(output):
        return str(error.get("message", ""))[:_PREVIEW]
    body = lines.get_body(output)
    return str(lines.get_text(list_choices(body)[0]) or "")[:_PREVIEW] if body else ""


def _parse_json(text: bytes) -> Any:
    return json.loads(decode_line(text)) if text.strip() else None
