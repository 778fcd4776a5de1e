"""The start page: the service now and over a period, its top users and its failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from completions.admin import state
from completions.admin.dashboard import charts, figures
from completions.admin.dashboard.charts import Line
from completions.admin.dashboard.figures import Sums, quantile
from completions.admin.dashboard.periods import DAY, PERIODS, Period
from completions.admin.display import NONE, ago, compact, exact, milliseconds, money, share
from completions.models import ApiKey, UsageRecord
from completions.models.usage import FIRST_TOKEN, LATENCY, NANOS


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure; `note` explains it."""

    title: str
    value: str
    note: str = ""
    tone: str = ""
    change: str = ""


def fill(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add to the context what the dashboard's template shows. unfold calls this."""
    period = PERIODS.get(request.GET.get("period", ""), DAY)
    now = timezone.now()
    context["periods"] = [(p.name, p.title, p is period) for p in PERIODS.values()]
    context["period"] = period
    if request.user.has_perm("completions.view_usagerecord"):
        context |= used(period, now)
    context["title"] = "Dashboard"
    return context


def used(period: Period, now: datetime) -> dict[str, Any]:
    """The tiles, charts and rankings of the period, and the live state."""
    by_bucket = figures.series(period, now)
    sums, earlier = figures.total(by_bucket), figures.before(period, now)
    live = state.read()
    labels = [period.label(bucket) for bucket in period.buckets(now)]
    return {
        "tiles": [*_usage_tiles(sums, earlier, period), *_live_tiles(live)],
        "warnings": live.warnings,
        "panels": [*_usage_panels(labels, by_bucket), _load_panel(labels, period, now, live)],
        "empty": not sums["requests"],
        "keys": _top_keys(period, now, sums),
        "models": _top_models(period, now, sums),
        "failures": _failures(period, now),
    }


def _usage_tiles(sums: Sums, earlier: Sums, period: Period) -> list[Tile]:
    tokens = sums["prompt_tokens"] + sums["completion_tokens"]
    tokens_earlier = earlier["prompt_tokens"] + earlier["completion_tokens"]
    failed = sums["failed"]
    return [
        Tile(
            "Requests", compact(sums["requests"]),
            f"{exact(failed)} failed, {share(failed, sums['requests'])}",
            "bad" if failed > 0.05 * sums["requests"] else "",
            _change(sums["requests"], earlier["requests"]),
        ),
        Tile(
            "Tokens", compact(tokens),
            f"{compact(sums['prompt_tokens'])} in, {compact(sums['completion_tokens'])} out",
            change=_change(tokens, tokens_earlier),
        ),
        Tile(
            "Cost", money(sums["cost_nanos"]), "at the prices in models.toml",
            change=_change(sums["cost_nanos"], earlier["cost_nanos"]),
        ),
        Tile("Latency", *_quantiles(sums, LATENCY)),
        Tile("First token", *_quantiles(sums, FIRST_TOKEN)),
        Tile(
            "Cached, forced",
            f"{share(sums['cached_tokens'], sums['prompt_tokens'])}, "
            f"{share(sums['forced_tokens'], sums['completion_tokens'])}",
            "of prompt tokens, of output tokens",
        ),
    ]  # fmt: skip


def _quantiles(sums: Sums, columns: Sequence[str]) -> tuple[str, str]:
    median, p95 = (milliseconds(quantile(sums, columns, q)) for q in (0.5, 0.95))
    return median, f"median; p95 {p95}"


def _change(now: float, before: float) -> str:
    """The change from the period before; empty if that had almost none."""
    if now > 10 * before:
        return ""
    return f"{round(100 * (now - before) / before):+d} %" if before else ""


def _live_tiles(live: state.Live) -> list[Tile]:
    if not live.reachable:
        return [Tile("Queue", NONE, "Redis does not answer", "bad")]
    parts = [f"{exact(n)} {kind}" for kind, n in live.queued.items() if n]
    slots = f"{exact(live.running)} / {exact(live.slots)}" if live.slots else exact(live.running)
    workers = f"on {len(live.workers)} worker{'s' if len(live.workers) != 1 else ''}"
    return [
        Tile("Queue now", exact(sum(live.queued.values())), ", ".join(parts) or "empty"),
        Tile("Slots now", slots, f"running {workers}", "" if live.workers else "bad"),
    ]


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart with its title and a note."""

    title: str
    chart: Mapping[str, str]
    note: str = ""


def _usage_panels(labels: Sequence[str], sums: Sequence[Sums]) -> list[Panel]:
    def column(name: str) -> list[float | None]:
        return [each[name] or 0 for each in sums]

    done = [each["requests"] - each["failed"] - each["cancelled"] for each in sums]
    fresh = [each["prompt_tokens"] - each["cached_tokens"] for each in sums]
    chosen = [each["completion_tokens"] - each["forced_tokens"] for each in sums]
    requests = [
        Line("completed", done, charts.PRIMARY),
        Line("cancelled", column("cancelled"), charts.AMBER),
        Line("failed", column("failed"), charts.RED),
    ]
    tokens = [
        Line("prompt", fresh, charts.BLUE),
        Line("prompt, cached", column("cached_tokens"), charts.GREY),
        Line("output", chosen, charts.PRIMARY),
        Line("output, forced by grammar", column("forced_tokens"), charts.VIOLET),
    ]
    latency = [
        Line("latency p50", _line(sums, LATENCY, 0.5), charts.PRIMARY),
        Line("latency p95", _line(sums, LATENCY, 0.95), charts.PRIMARY, dashed=True),
        Line("first token p50", _line(sums, FIRST_TOKEN, 0.5), charts.BLUE),
        Line("first token p95", _line(sums, FIRST_TOKEN, 0.95), charts.BLUE, dashed=True),
    ]
    shares = [
        Line("prompt tokens cached", _shares(sums, "cached_tokens", "prompt_tokens"), charts.GREY),
        Line(
            "output tokens forced", _shares(sums, "forced_tokens", "completion_tokens"),
            charts.VIOLET,
        ),
    ]  # fmt: skip
    cost = [Line("cost", [each["cost_nanos"] / NANOS for each in sums], charts.PRIMARY)]
    return [
        Panel("Requests", charts.bars(labels, requests)),
        Panel("Tokens", charts.bars(labels, tokens)),
        Panel(
            "Time to answer",
            charts.lines(labels, latency, "seconds", logarithmic=True),
            "completed requests without batches",
        ),
        Panel("Cached and forced share", charts.lines(labels, shares, "%")),
        Panel("Cost", charts.bars(labels, cost)),
    ]


def _line(sums: Sequence[Sums], columns: Sequence[str], q: float) -> list[float | None]:
    found = (quantile(each, columns, q) for each in sums)
    return [None if value is None else round(value / 1000, 3) for value in found]


def _shares(sums: Sequence[Sums], part: str, whole: str) -> list[float | None]:
    return [round(100 * each[part] / each[whole], 1) if each[whole] else None for each in sums]


def _load_panel(labels: Sequence[str], period: Period, now: datetime, live: state.Live) -> Panel:
    load = figures.load(period, now)

    def column(*names: str) -> list[float | None]:
        return [
            None if each is None else round(sum(each[name] for name in names), 2) for each in load
        ]

    lines = [
        Line("queued, interactive", column("queued_interactive"), charts.RED),
        Line("queued, background", column("queued_background", "queued_batch"), charts.AMBER),
        Line("running", column("running"), charts.PRIMARY),
        Line("slots", column("slots"), charts.GREY, dashed=True),
    ]
    return Panel("Queue and slots", charts.lines(labels, lines), "means of samples")


# Rankings ---------------------------------------------------------------------------------------


def _ranking(row: Mapping[str, Any], sums: Sums) -> dict[str, Any]:
    whole = sums["prompt_tokens"] + sums["completion_tokens"]
    return {
        "requests": exact(row["requests"]),
        "tokens": compact(row["tokens"]),
        "cost": money(row["cost_nanos"]),
        "failed": share(row["failed"], row["requests"]) if row["failed"] else NONE,
        "share": round(100 * row["tokens"] / whole) if whole else 0,
    }


def _top_keys(period: Period, now: datetime, sums: Sums) -> list[dict[str, Any]]:
    rows = figures.ranked(period, now, "api_key_id")
    keys = ApiKey.objects.select_related("organization").in_bulk([r["api_key_id"] for r in rows])
    return [
        {
            **_ranking(row, sums),
            "name": key.name,
            "note": key.organization.name,
            "link": reverse("admin:completions_apikey_change", args=[key.pk]),
        }
        for row in rows
        if (key := keys.get(row["api_key_id"]))
    ]


def _top_models(period: Period, now: datetime, sums: Sums) -> list[dict[str, Any]]:
    requests = reverse("admin:completions_usagerecord_changelist")
    return [
        {
            **_ranking(row, sums),
            "name": row["model"],
            "note": row["adapter"] and f"adapter {row['adapter']}",
            "link": f"{requests}?model={row['model']}",
        }
        for row in figures.ranked(period, now, "model", "adapter")
    ]


def _failures(period: Period, now: datetime) -> list[dict[str, Any]]:
    rows = figures.failures(period, now)
    last = UsageRecord.objects.in_bulk([row["last_id"] for row in rows])
    requests = reverse("admin:completions_usagerecord_changelist")
    return [
        {
            "code": row["error_code"] or "unknown",
            "count": exact(row["count"]),
            "when": ago(record.finished_at, now),
            "job": record.job_id,
            "job_link": reverse("operations:job", args=[record.job_id]),
            "link": f"{requests}?status=failed&error_code={row['error_code']}",
        }
        for row in rows
        if (record := last.get(row["last_id"]))
    ]
