"""How the lines of a batch will end, or have: its forecast, errors and summary, with links to the
results that each figure counts."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

import orjson
from django.db.models import Count, QuerySet, Sum, Window
from django.db.models.functions import RowNumber
from django.urls import reverse

from completions.admin.display import (
    NONE,
    format_compact,
    format_exact,
    format_money,
    format_seconds,
)
from completions.batches import lines, resubmission
from completions.batches.planning import forecast
from completions.batches.results import search
from completions.batches.results.search import Contents, Criteria
from completions.batches.summary import Summary
from completions.models import Batch, LineState, UsageRecord
from completions.models.batches import parse_job_id

_LINES_NAMED = 12
"""Lines listed per error code."""
_CODES_SHOWN = 10
_READ = 200
"""Failed lines of a running batch that are read for their messages."""
_MESSAGES = 3
"""Different messages that are shown per error code."""
_MESSAGE = 300
"""Characters of a message that are shown."""
_QUANTILES = ("mean", "p50", "p90", "p99", "max")
_NUMBERS = (
    ("queue_seconds", "seconds in the queue"),
    ("run_seconds", "seconds with a worker"),
    ("prompt_tokens", "prompt tokens"),
    ("completion_tokens", "completion tokens"),
)


def select_records(batch: Batch) -> QuerySet[UsageRecord]:
    """Return the usage of the batch's ended lines. Their job ids are adjacent in the index."""
    return UsageRecord.objects.filter(job_id__range=batch.job_ids).order_by()


def sum_cost(batch: Batch) -> int:
    """Return what the lines of a batch have cost, in billionths."""
    cost: int | None = select_records(batch).aggregate(cost=Sum("cost_nanos"))["cost"]
    return cost or 0


# The forecast ------------------------------------------------------------------------------------


def make_forecast(batch: Batch, now: datetime) -> dict[str, object] | None:
    """Return the forecast of an open batch as tiles of the page; None without one."""
    found: Any = None if batch.has_ended else forecast.forecast_batch(batch, now)
    if found is None:
        return None
    cost = {name: found["cost"][name] for name in ("least", "most", "expected")}
    nanos = {name: each if each is None else round(each * 1e9) for name, each in cost.items()}
    unfinishable = found["lines_that_cannot_finish"]
    tiles = [
        ("Pilot", f"{found['lines_run']} / {batch.pilot}", "lines have run"),
        ("Completion tokens", *_show_range(found["completion_tokens"], format_compact)),
        ("Forecast cost", *_show_range(nanos, format_money)),
        ("Forecast time", *_show_range(found["seconds"] or {}, format_seconds)),
        ("Cannot finish", format_exact(unfinishable), "lines whose max_tokens is too low"),
    ]
    return {"tiles": tiles, "is_over": not found["cost"]["within_budgets"]}


def _show_range(interval: Mapping[str, Any], show: Any) -> tuple[str, str]:
    """Return the expected value and its bounds, or the bounds alone."""
    bounds = [show(interval.get(name)) for name in ("least", "most")]
    between = NONE if bounds == [NONE, NONE] else " to ".join(dict.fromkeys(bounds))
    expected = interval.get("expected")
    return (between, "at least, at most") if expected is None else (show(expected), between)


# Errors ------------------------------------------------------------------------------------------


class _Failure(NamedTuple):
    """A line that failed."""

    number: int
    link: str
    message: str


def group_errors(batch: Batch) -> list[dict[str, object]]:
    """Group failed lines by error code, with some line numbers and messages of each."""
    failed = select_records(batch).filter(status="failed")
    counted = failed.values_list("error_code").annotate(count=Count("id"))
    codes = {**dict(counted), **batch.summary.get("errors", {})}  # includes refused lines
    shown = sorted(codes, key=codes.__getitem__, reverse=True)[:_CODES_SHOWN]
    found = _find_ended(batch, shown) if batch.has_ended else _find_running(batch, shown, failed)
    return [
        {
            "code": name or "unknown",
            "count": format_exact(codes[name]),
            "messages": _list_messages(found[name]) or [("", lines.explain_error(name))],
            "lines": [(each.number, each.link) for each in found[name][:_LINES_NAMED]],
            "more": max(0, codes[name] - len(found[name][:_LINES_NAMED])),
            "link": _link(batch, reason=name),
        }
        for name in shown
    ]


def _find_ended(batch: Batch, codes: Sequence[str]) -> dict[str, list[_Failure]]:
    found = {}
    with Contents(batch) as contents:
        for code in codes:
            criteria = Criteria(completed=False, reason=code)
            page = search.find_page(criteria, contents, 0, _LINES_NAMED, 0.0)
            found[code] = [
                _Failure(row.number, _link_line(batch, row.number), _read_message(text))
                for row, text in page.lines
            ]
    return found


def _read_message(text: bytes) -> str:
    return _shorten(lines.get_error(orjson.loads(text))) if text.strip() else ""


def _find_running(
    batch: Batch, codes: Sequence[str], failed: QuerySet[UsageRecord]
) -> dict[str, list[_Failure]]:
    """Lines that ran link to their jobs; those that were refused before have none."""
    found: dict[str, dict[int, _Failure]] = {code: {} for code in codes}
    for line in batch.lines.filter(state=LineState.FAILED).order_by("number")[:_READ]:
        error = lines.get_error(lines.read_result(batch, line))
        if (code := str(error.get("code"))) in found:
            found[code][line.number] = _Failure(line.number, "", _shorten(error))
    nth = Window(RowNumber(), partition_by="error_code", order_by="job_id")
    jobs = failed.filter(error_code__in=codes).annotate(nth=nth).filter(nth__lte=_LINES_NAMED)
    for code, job_id in jobs.values_list("error_code", "job_id"):
        number = parse_job_id(job_id)[1]
        message = found[code][number].message if number in found[code] else ""
        link = reverse("operations:job", args=[job_id])
        found[code][number] = _Failure(number, link, message)
    return {code: sorted(rows.values()) for code, rows in found.items()}


def _shorten(error: Mapping[str, object]) -> str:
    return str(error.get("message") or "")[:_MESSAGE]


def _list_messages(failures: Sequence[_Failure]) -> list[tuple[str, str]]:
    """Return the first different messages, each with its first line."""
    first: dict[str, int] = {}
    for each in failures:
        if each.message:
            first.setdefault(each.message, each.number)
    return [(f"line {number}", message) for message, number in list(first.items())[:_MESSAGES]]


def _link_line(batch: Batch, number: int) -> str:
    """Return the address of the page of a line; empty if it is not shown."""
    is_shown = batch.organization.store_prompts
    return reverse("console:results-line", args=[batch.id, number]) if is_shown else ""


# The summary -------------------------------------------------------------------------------------


def make_summary(batch: Batch) -> dict[str, object] | None:
    """Return the aggregates of the results as tables for the page; None before the first result."""
    if not batch.summary:
        return None
    summary = Summary(batch.counted_fields, batch.summary).as_summary()
    numbers = [
        (name, *(format_compact(summary[key][each]) for each in _QUANTILES))
        for key, name in _NUMBERS
        if summary[key] is not None
    ]
    fields: dict[str, list[tuple[str, str, str]]] = {}
    cut = []
    for name, each in search.list_counted(batch).items():
        link = _link(batch, value=name) if batch.organization.store_prompts else ""
        if each.value is None:
            cut.append((each.field or "/", format_exact(each.answers), link))
        else:
            counts = fields.setdefault(each.field or "/", [])
            counts.append((each.value, format_exact(each.answers), link))
    ends = [
        (name, format_exact(count), _link(batch, status="completed", reason=name))
        for name, count in summary["finish_reasons"].items()
    ]
    return {"numbers": numbers, "fields": list(fields.items()), "ends": ends, "cut": cut}


def _link(batch: Batch, **query: str) -> str:
    """Return the address of these results; empty while the batch runs."""
    page = reverse("console:results", args=[batch.id])
    return f"{page}?{urlencode(query)}" if batch.has_ended else ""


# What is left ------------------------------------------------------------------------------------


def describe_again(batch: Batch, spent: int) -> str:
    """Return what a resubmission sends; empty if there is nothing to send.

    `spent` is what the lines of the batch have cost, in billionths.
    """
    if not resubmission.can_resubmit(batch):
        return ""
    return describe_lines(batch, batch.failed or batch.total, spent)


def describe_lines(batch: Batch, count: int, spent: int) -> str:
    """Return a number of lines and what they are likely to cost, by what the batch has spent."""
    cost = resubmission.estimate_cost(batch, count, spent)
    likely = "" if cost is None else f", about {format_money(cost)}"
    return f"{format_exact(count)} {'line' if count == 1 else 'lines'}{likely}"
