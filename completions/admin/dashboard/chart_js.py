"""Chart.js configurations for unfold's chart components, and the sparklines of tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

PRIMARY = "var(--color-primary-500)"
# Distinguishable in both themes, and with red-green colour blindness.
BLUE, AMBER, RED, VIOLET, GREY = "#3b82f6", "#f59e0b", "#ef4444", "#8b5cf6", "#9ca3af"
_TEXT, _GRID = "#8b929e", "rgba(139,146,158,0.22)"


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a chart; None leaves a gap."""

    label: str
    values: Sequence[float | None]
    color: str
    dashed: bool = False


def make_bars(
    labels: Sequence[str], series: Sequence[Series], lines: Sequence[Series] = ()
) -> dict[str, object]:
    """Return stacked bars, with lines that are not part of the stack."""
    bars = {"stack": "one", "borderRadius": 2, "maxBarThickness": 28}
    over = {"type": "line", "borderWidth": 2, "pointRadius": 0}
    sets = [
        *(_make_set(line, {**over, "stack": line.label}) for line in lines),
        *(_make_set(line, bars) for line in series),
    ]
    return _make_chart("bar", labels, sets, _make_options("", True, len(sets) > 1, has_lines=False))


def make_lines(
    labels: Sequence[str],
    series: Sequence[Series],
    unit: str = "",
    logarithmic: bool = False,
    curved: bool = True,
) -> dict[str, object]:
    look = {
        "backgroundColor": "transparent",
        "borderWidth": 2,
        "pointHitRadius": 8,
        "tension": 0.25 if curved else 0,
    }
    sets = [
        _make_set(line, {**look, "pointRadius": 2 if None in line.values else 0}) for line in series
    ]
    options = _make_options(unit, False, len(series) > 1, has_lines=True)
    if logarithmic:
        options["scales"]["y"] |= {"type": "logarithmic", "beginAtZero": False}
    return _make_chart("line", labels, sets, options)


def _make_set(line: Series, look: Mapping[str, object]) -> dict[str, object]:
    return {
        "label": line.label,
        "data": list(line.values),
        "backgroundColor": line.color,
        "borderColor": line.color,
        "borderDash": [5, 4] if line.dashed else [],
        **look,
    }


def _make_chart(
    kind: str, labels: Sequence[str], sets: list[Any], options: object
) -> dict[str, object]:
    """Return what `quire/chart.html` shows: a chart and a table of the same figures, or that there
    is nothing to draw."""
    values = [value for each in sets for value in each["data"] if value is not None]
    return {
        "kind": kind,
        "is_empty": not any(values),
        "is_zero": bool(values),
        "titles": [each["label"] for each in sets],
        "rows": list(zip(labels, zip(*(each["data"] for each in sets), strict=True), strict=True)),
        "data": json.dumps({"labels": list(labels), "datasets": sets}),
        "options": json.dumps(options),
    }


def _make_options(unit: str, stacked: bool, legend: bool, has_lines: bool) -> dict[str, Any]:
    ticks = {"color": _TEXT, "font": {"size": 11}}
    # A line as a box without height has its dashes; Chart.js draws the style of a point without.
    marks: dict[str, object] = {"boxWidth": 24, "boxHeight": 0}
    if not has_lines:
        marks = {"boxWidth": 7, "boxHeight": 7, "usePointStyle": True, "pointStyle": "circle"}
    title = {"display": bool(unit), "text": unit, "color": _TEXT, "font": {"size": 11}}
    return {
        "animation": False,
        "responsive": True,
        "maintainAspectRatio": False,
        "interaction": {"mode": "index", "intersect": False},
        "plugins": {
            "legend": {
                "display": legend,
                "align": "start",
                "labels": {"padding": 12, **marks, "color": _TEXT, "font": {"size": 11}},
            },
        },
        "scales": {
            "x": {
                "stacked": stacked,
                "grid": {"display": False},
                "ticks": {**ticks, "maxRotation": 0, "autoSkip": True, "autoSkipPadding": 16},
            },
            "y": {
                "stacked": stacked,
                "beginAtZero": True,
                "border": {"display": False},
                "grid": {"color": _GRID},
                "title": title,
                "ticks": {
                    **ticks,
                    "maxTicksLimit": 5,
                    "format": {
                        "notation": "compact",
                        "minimumFractionDigits": 0,
                        "maximumFractionDigits": 3,
                    },
                },
            },
        },
    }


def make_sparkline(values: Sequence[float], title: str) -> SafeString:
    """Return a bar chart in one line of text. `title` describes it for screen readers."""
    width, height, gap = 120, 24, 1
    top = max(values, default=0)
    if not top:
        return format_html('<span class="q-faint">{}</span>', "no use")
    step = width / len(values)
    drawn = "".join(
        f"M{i * step:.1f} {height}v-{max(1.5, value / top * (height - 2)):.1f}"
        f"h{step - gap:.1f}V{height}z"
        for i, value in enumerate(values)
        if value
    )
    return format_html(
        '<svg class="q-spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img">'
        '<title>{}</title><path d="{}"/></svg>',
        width,
        height,
        width,
        height,
        title,
        drawn,
    )
