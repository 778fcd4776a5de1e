"""The charts of the start page: which figures each panel shows, and how they are computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from completions.admin.dashboard import chart_js, figures
from completions.admin.dashboard.chart_js import Series
from completions.admin.dashboard.figures import Period
from completions.admin.dashboard.hourly_sums import Sums
from completions.models.usage import FIRST_TOKEN, LATENCY, NANOS
from completions.usage.report import quantile


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    chart: Mapping[str, object]
    note: str = ""


def make_usage_panels(labels: Sequence[str], sums: Sequence[Sums]) -> list[Panel]:
    """Make the panels of requests, tokens, latency, shares and cost in each bucket."""

    def column(name: str) -> list[float | None]:
        return [each[name] or 0 for each in sums]

    done = [each["requests"] - each["failed"] - each["cancelled"] for each in sums]
    fresh = [each["prompt_tokens"] - each["cached_tokens"] for each in sums]
    chosen = [each["completion_tokens"] - each["forced_tokens"] for each in sums]
    requests = [
        Series("completed", done, chart_js.PRIMARY),
        Series("cancelled", column("cancelled"), chart_js.AMBER),
        Series("failed", column("failed"), chart_js.RED),
    ]
    tokens = [
        Series("prompt", fresh, chart_js.BLUE),
        Series("prompt, cached", column("cached_tokens"), chart_js.GREY),
        Series("output", chosen, chart_js.PRIMARY),
        Series("output, forced by grammar", column("forced_tokens"), chart_js.VIOLET),
    ]
    latency = [
        Series("latency p50", _make_line(sums, LATENCY, 0.5), chart_js.PRIMARY),
        Series("latency p95", _make_line(sums, LATENCY, 0.95), chart_js.PRIMARY, dashed=True),
        Series("first token p50", _make_line(sums, FIRST_TOKEN, 0.5), chart_js.BLUE),
        Series("first token p95", _make_line(sums, FIRST_TOKEN, 0.95), chart_js.BLUE, dashed=True),
    ]
    cached = _compute_shares(sums, "cached_tokens", "prompt_tokens")
    forced = _compute_shares(sums, "forced_tokens", "completion_tokens")
    shares = [
        Series("prompt tokens cached", cached, chart_js.GREY),
        Series("output tokens forced", forced, chart_js.VIOLET),
    ]
    cost = [Series("cost", [each["cost_nanos"] / NANOS for each in sums], chart_js.PRIMARY)]
    return [
        Panel("Requests", chart_js.make_bars(labels, requests)),
        Panel("Tokens", chart_js.make_bars(labels, tokens)),
        Panel(
            "Time to answer",
            chart_js.make_lines(labels, latency, "seconds", logarithmic=True),
            "completed requests without batches",
        ),
        Panel("Cached and forced share", chart_js.make_lines(labels, shares, "%")),
        Panel("Cost", chart_js.make_bars(labels, cost)),
    ]


def make_load_panel(labels: Sequence[str], period: Period, now: datetime) -> Panel:
    """Return how many jobs were queued and running in each of the period's buckets."""
    load = figures.load_samples(period, now)

    def column(*names: str) -> list[float | None]:
        return [round(sum(each[name] for name in names), 2) if each else None for each in load]

    lines = [
        Series("queued, interactive", column("queued_interactive"), chart_js.RED),
        Series("queued, background", column("queued_background", "queued_batch"), chart_js.AMBER),
        Series("running", column("running"), chart_js.PRIMARY),
        Series("slots", column("slots"), chart_js.GREY, dashed=True),
    ]
    return Panel("Queue and slots", chart_js.make_lines(labels, lines), "means of samples")


def _make_line(sums: Sequence[Sums], columns: Sequence[str], q: float) -> list[float | None]:
    values = (quantile(each, columns, q) for each in sums)
    return [None if value is None else round(value / 1000, 3) for value in values]


def _compute_shares(sums: Sequence[Sums], part: str, whole: str) -> list[float | None]:
    return [round(100 * each[part] / each[whole], 1) if each[whole] else None for each in sums]
