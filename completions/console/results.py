"""The results of an ended batch: a row for each line, filtered, opened, exported, sent again."""

import json
from collections.abc import Iterator
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone

from completions.accounts.scope import may_manage, select_managed, select_seen
from completions.admin.base import render_page, require_change, require_view
from completions.admin.batch_outcome import describe_lines, sum_cost
from completions.admin.display import format_exact, make_label
from completions.admin.job_texts import describe_late_sight
from completions.batches import files, resubmission
from completions.batches.export.columns import Collector, Column, Columns
from completions.batches.export.encoding import ENCODINGS
from completions.batches.export.rows import ExportError, ExportRow, open_source, read_row
from completions.batches.input_lines import decode_line
from completions.batches.results import search
from completions.batches.results.search import Contents, Criteria
from completions.console.acting import require_usable, store_batch
from completions.endpoints.batch_exports import make_download
from completions.endpoints.files import make_storage_error
from completions.exceptions import APIError
from completions.models import Batch, BatchResult, File, Scope

PAGE = 50
SECONDS = 0.12
"""Seconds that one page searches for a text."""
_PREVIEW = 160
"""Characters of a value in the table."""
_COLUMNS = 12
"""The most properties in the table; the page of a line has all."""
_REQUEST_BYTES = 8 * 1024 * 1024
"""The most bytes of requests that are read for the columns of one page."""
_STATUS = {"completed": True, "failed": False}
_ASKED = ("status", "reason", "text", "value")


@require_view("view_batch", for_members=True)
def show_results(request: HttpRequest, batch_id: str) -> HttpResponseBase:
    batch = _find(select_seen(Batch.objects.all(), request.user), batch_id)
    criteria = _parse_search(request, batch)
    before, after = (_parse_number(request.GET.get(name, "")) for name in ("before", "after"))
    is_shown = batch.organization.store_prompts
    with Contents(batch) as contents:
        found = search.find_page(
            criteria, contents, before or after, PAGE, SECONDS, backward=bool(before)
        )
        columns = _find_columns(contents, [row for row, _ in found.lines]) if is_shown else None
        shown = columns.answer_columns[:_COLUMNS] if columns else []
        rows = [_make_row(batch, row, text, columns, shown) for row, text in found.lines]
    grouped = search.count_results(batch)
    query = _list_query(request)
    numbers = [row.number for row, _ in found.lines] or [found.searched]
    context = {
        "batch": batch,
        "columns": shown,
        "rows": rows,
        "found": found,
        "shown": is_shown,
        "late": is_shown and describe_late_sight(batch.organization, batch.created_at),
        "total": format_exact(sum(count for _, _, count in grouped)),
        "statuses": [
            (name, sum(n for completed, _, n in grouped if completed == value))
            for name, value in _STATUS.items()
        ],
        "reasons": [(reason, format_exact(count), done) for done, reason, count in grouped],
        "values": [
            (name, f"cut in {each.field or '/'}" if each.value is None else name, each.answers)
            for name, each in (search.list_counted(batch) if is_shown else {}).items()
        ],
        "asked": {name: request.GET.get(name, "") for name in _ASKED},
        "query": urlencode(query),
        "previous": urlencode({**query, "before": found.searched if before else numbers[0]})
        if (found.more if before else after)
        else "",
        "next": urlencode({**query, "after": numbers[-1] if before else found.searched})
        if before or found.more
        else "",
        "formats": ENCODINGS,
        "indexed": bool(grouped),
        "again": _describe_resubmission(batch, criteria, grouped),
        "may_act": request.user.has_perm("completions.change_batch")
        and may_manage(request.user, batch),
    }
    return render_page(request, "quire/results.html", "Results", context)


@require_view("view_batch", for_members=True)
def show_line(request: HttpRequest, batch_id: str, number: int) -> HttpResponseBase:
    """Show all columns of one line, its request and its output."""
    batch = _find(select_seen(Batch.objects.all(), request.user), batch_id)
    _require_shown(batch)
    row = get_object_or_404(BatchResult, batch=batch, number=number)
    criteria, query = _parse_search(request, batch), _list_query(request)
    with Contents(batch) as contents:
        columns = _find_columns(contents, [row])
        sent, output = contents.read_request(row), contents.read_outputs([row])[0]
        neighbours = [
            search.find_page(criteria, contents, number, 1, SECONDS, backward)
            for backward in (True, False)
        ]
    values = read_row(batch.id, number, output, columns).values if output.strip() else {}
    facts = [(each.name, _show(values.get(each.name))) for each in columns.all]
    context = {
        "batch": batch,
        "number": number,
        "label": make_label("completed" if row.completed else "failed"),
        "reason": row.reason,
        "facts": [(name, value) for name, value in facts if value],
        "parts": [("Request", _indent(sent)), ("Output", _indent(output))],
        "query": urlencode(query),
        "neighbours": [
            (words, page.lines[0][0].number if page.lines else None)
            for words, page in zip(("Previous", "Next"), neighbours, strict=True)
        ],
    }
    return render_page(request, "quire/result.html", f"Line {number}", context)


@require_view("view_batch", for_members=True)
def download(request: HttpRequest, batch_id: str) -> HttpResponseBase:
    """Return a row for each line that the filter finds."""
    batch = _find(select_seen(Batch.objects.all(), request.user), batch_id)
    _require_shown(batch)
    name = request.GET.get("format", "")
    if (encoding := ENCODINGS.get(name)) is None:
        raise Http404("There is no such format.")
    criteria = _parse_search(request, batch)
    try:
        columns = open_source(batch).columns()
        pieces = encoding.begin(_iterate_rows(batch, criteria, columns), columns)
    except ExportError as error:
        messages.error(request, f"Nothing was exported: {error}.")
        return redirect("console:results", batch.id)
    part = "_filtered" if _list_query(request) else ""
    return make_download(pieces, encoding, f"{batch.id}{part}.{name}")


def _iterate_rows(batch: Batch, criteria: Criteria, columns: Columns) -> Iterator[ExportRow]:
    with Contents(batch) as contents:
        for row, text in search.iterate_matches(criteria, contents):
            if text is not None and text.strip():
                yield read_row(batch.id, row.number, text, columns)


@require_change("change_batch", for_members=True)
def resubmit(request: HttpRequest, batch_id: str) -> HttpResponseBase:
    """Create a batch of the requests whose results the filter finds, under this batch's key; of
    all, if the batch ended before any line ran."""
    batch = _find(select_managed(Batch.objects.all(), request.user), batch_id)
    back = redirect("admin:completions_batch_change", batch.id)
    if not File.objects.readable(timezone.now()).filter(id=batch.input_file_id).exists():
        messages.error(request, "Nothing was sent: the input file was deleted or has expired.")
        return back
    try:
        principal = require_usable(batch.api_key, Scope.BATCHES)
        again, file = _copy_lines(batch, _parse_search(request, batch))
        if not file.bytes:
            file.delete()
            messages.warning(request, "Nothing was sent: no line matches.")
            return back
        store_batch(request.user, batch.api_key, principal, again, file, batch.id)
    except APIError as error:
        messages.error(request, f"Nothing was sent. {error.message}")
        return back
    messages.success(request, f"This batch sends lines of {batch.id} again.")
    return redirect("admin:completions_batch_change", again.id)


def _copy_lines(batch: Batch, criteria: Criteria) -> tuple[Batch, File]:
    """Raises APIError."""
    try:
        if not BatchResult.objects.filter(batch=batch).exists():
            if not resubmission.can_resubmit(batch):
                raise APIError("nothing_to_resubmit", param="id")
            return resubmission.prepare(batch, timezone.now())
        with Contents(batch) as contents:
            sent = search.iterate_requests(criteria, contents)
            return resubmission.copy_batch(batch, sent)
    except files.StorageLimitError as error:
        raise make_storage_error(error, "id") from error
    except files.FileLostError as error:
        raise APIError("internal_error", str(error)) from error
    except File.DoesNotExist as error:
        raise APIError("file_not_found", str(error), "id") from error


def _describe_resubmission(
    batch: Batch, criteria: Criteria, grouped: list[tuple[bool, str, int]]
) -> str:
    """Return what is sent again, with its number and its likely cost where these are known."""
    if criteria.reads_answers:
        return "all lines that the filter finds"
    lines = sum(
        count
        for completed, reason, count in grouped
        if criteria.completed in (None, completed) and criteria.reason in ("", reason)
    )
    return describe_lines(batch, lines, sum_cost(batch))


def _find(batches: QuerySet[Batch], batch_id: str) -> Batch:
    return get_object_or_404(batches.select_related("organization", "api_key"), pk=batch_id)


def _require_shown(batch: Batch) -> None:
    if not batch.organization.store_prompts:
        raise Http404("The texts of this organization are not shown.")


def _list_query(request: HttpRequest) -> dict[str, str]:
    return {name: value for name in _ASKED if (value := request.GET.get(name))}


def _parse_search(request: HttpRequest, batch: Batch) -> Criteria:
    query = request.GET
    text, value = "", ""
    if batch.organization.store_prompts:
        text, value = query.get("text", ""), query.get("value", "")
    counted = search.list_counted(batch).get(value) if value else None
    if value and counted is None:
        raise Http404("The summary of this batch counts no such value.")
    return Criteria(_STATUS.get(query.get("status", "")), query.get("reason", ""), text, counted)


def _parse_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _find_columns(contents: Contents, rows: list[BatchResult]) -> Columns:
    """Find the columns that the requests of these lines ask for."""
    collector, size = Collector(), 0
    for row in rows:
        size += row.sent_size
        if size > _REQUEST_BYTES and row is not rows[0]:
            break
        sent = _parse_json(contents.read_request(row))
        collector.see(sent.get("body") if isinstance(sent, dict) else None)
    return collector.columns(receipts=False)


def _make_row(
    batch: Batch, row: BatchResult, text: bytes, columns: Columns | None, shown: list[Column]
) -> dict[str, object]:
    found = (
        read_row(batch.id, row.number, text, columns)
        if columns is not None and text.strip()
        else ExportRow(row.number, {}, 0, False)
    )
    is_told = bool(shown) and found.is_whole  # the columns tell all of the answer
    rest = found.values.get("error_message") or ("" if is_told else found.values.get("text"))
    return {
        "number": row.number,
        "label": make_label("completed" if row.completed else "failed"),
        "reason": row.reason,
        "custom_id": found.values.get("custom_id", ""),
        "cells": [_show(found.values.get(each.name))[:_PREVIEW] for each in shown],
        "rest": _show(rest)[:_PREVIEW],
    }


def _show(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _parse_json(text: bytes) -> object:
    return json.loads(decode_line(text)) if text.strip() else None


def _indent(text: bytes) -> str:
    """Return a line as JSON that is easy to read; empty if it is gone."""
    return json.dumps(_parse_json(text), ensure_ascii=False, indent=2) if text.strip() else ""
