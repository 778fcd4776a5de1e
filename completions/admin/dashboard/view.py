"""The start page: the service now and over a period, with its top users and failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from completions.admin.dashboard import figures, panels
from completions.admin.dashboard.figures import DAY, PERIODS, Period
from completions.admin.dashboard.hourly_sums import Sums
from completions.admin.display import (
    NONE,
    format_ago,
    format_change,
    format_compact,
    format_exact,
    format_milliseconds,
    format_money,
    format_share,
)
from completions.admin.live import state
from completions.admin.refusals import list_refusals
from completions.models import ApiKey, BudgetWarning, UsageRecord
from completions.models.usage import FIRST_TOKEN, LATENCY
from completions.usage.refusals import select_refusals
from completions.usage.report import quantile


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure; `note` explains it."""

    title: str
    value: str
    note: str = ""
    tone: str = ""
    change: str = ""


def fill(request: HttpRequest, context: dict[str, object]) -> dict[str, object]:
    """Add what the dashboard's template shows to the context. unfold calls this."""
    period = PERIODS.get(request.GET.get("period", ""), DAY)
    now = timezone.now()
    context["periods"] = [(p.name, p.title, p is period) for p in PERIODS.values()]
    context["period"] = period
    if request.user.has_perm("completions.view_usagerecord"):
        context |= make_usage(period, now)
    context["title"] = "Dashboard"
    return context


def make_usage(period: Period, now: datetime) -> dict[str, object]:
    """Return the tiles, charts and rankings of the period, and the live state."""
    by_bucket = figures.load_series(period, now)
    sums, earlier = figures.add_up(by_bucket), figures.sum_before(period, now)
    live = state.read()
    labels = [period.format_bucket(bucket) for bucket in period.list_buckets(now)]
    return {
        "tiles": [*_make_usage_tiles(sums, earlier), *_make_live_tiles(live)],
        "warnings": [*live.warnings, *map(str, BudgetWarning.objects.current(now))],
        "panels": [
            *panels.make_usage_panels(labels, by_bucket),
            panels.make_load_panel(labels, period, now),
        ],
        "empty": not sums["requests"],
        "keys": _rank_keys(period, now, sums),
        "models": _rank_models(period, now, sums),
        "failures": _list_failures(period, now),
        "refusals": list_refusals(select_refusals(period.start(now)), now),
    }


def _make_usage_tiles(sums: Sums, earlier: Sums) -> list[Tile]:
    tokens = sums["prompt_tokens"] + sums["completion_tokens"]
    tokens_earlier = earlier["prompt_tokens"] + earlier["completion_tokens"]
    failed = sums["failed"]
    return [
        Tile(
            "Requests",
            format_compact(sums["requests"]),
            f"{format_exact(failed)} failed, {format_share(failed, sums['requests'])}",
            "bad" if failed > 0.05 * sums["requests"] else "",
            format_change(sums["requests"], earlier["requests"]),
        ),
        Tile(
            "Tokens",
            format_compact(tokens),
            f"{format_compact(sums['prompt_tokens'])} in, "
            f"{format_compact(sums['completion_tokens'])} out",
            change=format_change(tokens, tokens_earlier),
        ),
        Tile(
            "Cost",
            format_money(sums["cost_nanos"]),
            "at the prices in models.toml",
            change=format_change(sums["cost_nanos"], earlier["cost_nanos"]),
        ),
        Tile("Latency", *_format_quantiles(sums, LATENCY)),
        Tile("First token", *_format_quantiles(sums, FIRST_TOKEN)),
        Tile(
            "Cached, forced",
            f"{format_share(sums['cached_tokens'], sums['prompt_tokens'])}, "
            f"{format_share(sums['forced_tokens'], sums['completion_tokens'])}",
            "of prompt tokens, of output tokens",
        ),
    ]


def _format_quantiles(sums: Sums, columns: Sequence[str]) -> tuple[str, str]:
    median, p95 = (format_milliseconds(quantile(sums, columns, q)) for q in (0.5, 0.95))
    return median, f"median; p95 {p95}"


def _make_live_tiles(live: state.Live) -> list[Tile]:
    if not live.reachable:
        return [Tile("Queue", NONE, "Redis does not answer", "bad")]
    parts = [f"{format_exact(n)} {kind}" for kind, n in live.count_queued_by_kind.items()]
    slots = (
        f"{format_exact(live.running)} / {format_exact(live.slots)}"
        if live.slots
        else format_exact(live.running)
    )
    workers = f"on {len(live.workers)} worker{'s' if len(live.workers) != 1 else ''}"
    return [
        Tile("Queue now", format_exact(live.queued.total()), ", ".join(parts) or "empty"),
        Tile("Slots now", slots, f"running {workers}", "" if live.workers else "bad"),
    ]


# Rankings ---------------------------------------------------------------------------------------


def _make_ranking(row: Mapping[str, Any], sums: Sums) -> dict[str, object]:
    whole = sums["prompt_tokens"] + sums["completion_tokens"]
    return {
        "requests": format_exact(row["requests"]),
        "tokens": format_compact(row["tokens"]),
        "cost": format_money(row["cost_nanos"]),
        "failed": format_share(row["failed"], row["requests"]) if row["failed"] else NONE,
        "share": round(100 * row["tokens"] / whole) if whole else 0,
    }


def _rank_keys(period: Period, now: datetime, sums: Sums) -> list[dict[str, object]]:
    rows = figures.rank(period, now, "api_key_id")
    keys = ApiKey.objects.select_related("organization").in_bulk([r["api_key_id"] for r in rows])
    return [
        {
            **_make_ranking(row, sums),
            "name": key.name,
            "note": key.organization.name,
            "link": reverse("admin:completions_apikey_change", args=[key.pk]),
        }
        for row in rows
        if (key := keys.get(row["api_key_id"]))
    ]


def _rank_models(period: Period, now: datetime, sums: Sums) -> list[dict[str, object]]:
    requests = reverse("admin:completions_usagerecord_changelist")
    return [
        {
            **_make_ranking(row, sums),
            "name": row["model"],
            "note": row["adapter"] and f"adapter {row['adapter']}",
            "link": f"{requests}?{urlencode({'model': row['model']})}",
        }
        for row in figures.rank(period, now, "model", "adapter")
    ]


def _list_failures(period: Period, now: datetime) -> list[dict[str, object]]:
    rows = figures.count_failures(period, now)
    last = UsageRecord.objects.in_bulk([row["last_id"] for row in rows])
    requests = reverse("admin:completions_usagerecord_changelist")
    return [
        {
            "code": row["error_code"] or "unknown",
            "count": format_exact(row["count"]),
            "when": format_ago(record.finished_at, now),
            "job": record.job_id,
            "job_link": reverse("operations:job", args=[record.job_id]),
            "link": f"{requests}?status=failed&error_code={row['error_code']}",
        }
        for row in rows
        if (record := last.get(row["last_id"]))
    ]
