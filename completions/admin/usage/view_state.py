"""What a view of usage shows: its span, groups, measure and filters, as the query string says."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TypeVar
from urllib.parse import urlencode

from django.http import QueryDict

from completions.admin.usage.periods import (
    MOST_BUCKETS,
    PRESETS,
    WIDTHS,
    Span,
    Width,
    find_midnight,
    fit_width,
    get_midnight,
)
from completions.models.usage import NANOS

T = TypeVar("T")
Value = str | int


class BadViewError(Exception):
    """A query string that no view has; the message says what to send instead."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """Something that usage can be grouped and filtered by."""

    name: str
    column: str
    """The column of UsageHour."""
    title: str
    next: str
    """The dimension that a click on a group goes on with."""

    @property
    def is_id(self) -> bool:
        return self.column.endswith("_id")

    def read(self, text: str) -> Value:
        """Read a value from a query string. Raises BadViewError."""
        if not self.is_id:
            return text.replace("\0", "")
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise BadViewError(
                f"{self.name}={text[:64]}: use the number in the address of its page."
            )
        return int(text)


DIMENSIONS = {
    each.name: each
    for each in (
        Dimension("organization", "organization_id", "organization", "key"),
        Dimension("key", "api_key_id", "API key", "model"),
        Dimension("model", "model", "model", "key"),
        Dimension("adapter", "adapter", "adapter", "key"),
        Dimension("kind", "kind", "kind", "key"),
        Dimension("batch", "batch", "batch", "model"),
    )
}


@dataclass(frozen=True, slots=True)
class Measure:
    """What the bars of a chart measure: the sum of some columns of UsageHour."""

    name: str
    title: str
    columns: Sequence[str]
    scale: int = 1
    """What a sum is divided by to be shown."""
    budget: str = ""
    """`tokens` or `cost`, where budgets limit it."""

    def add_up(self, sums: Mapping[str, int]) -> int:
        return sum(sums[name] for name in self.columns)


MEASURES = {
    each.name: each
    for each in (
        Measure("tokens", "Tokens", ("prompt_tokens", "completion_tokens"), budget="tokens"),
        Measure("input", "Prompt tokens", ("prompt_tokens",)),
        Measure("output", "Output tokens", ("completion_tokens",)),
        Measure("requests", "Requests", ("requests",)),
        Measure("failed", "Failed requests", ("failed",)),
        Measure("cost", "Cost", ("cost_nanos",), NANOS, "cost"),
    )
}
_ALL = ("range", "from", "to", "by", "show", "per")
PARAMETERS = (*_ALL, *DIMENSIONS)


@dataclass(frozen=True, slots=True)
class View:
    preset: str
    """A name of PRESETS; empty for the days of `span`."""
    span: Span
    group: Dimension
    measure: Measure
    width: Width
    per: str
    """The name of the width; empty if the span chose it."""
    filters: Mapping[str, Value]
    """Values by the names of dimensions, `fixed` included."""
    fixed: Mapping[str, Value]
    """The filters of the page that shows the view; its address says them."""

    def make_free_query(self) -> str:
        """Return the query string that leads to this view on the page of all usage."""
        return urlencode({**self._list_shown(), **self.filters})

    def link_to(self, **changes: Value | None) -> str:
        """Return a link on the same page to this view with some parameters changed; None removes
        one. Another range may need other bars."""
        filters = {name: value for name, value in self.filters.items() if name not in self.fixed}
        shown = {**self._list_shown(), **filters, **changes}
        if "range" in changes:
            shown |= {"from": None, "to": None}
        return f"?{urlencode({name: each for name, each in shown.items() if each is not None})}"

    def _list_shown(self) -> dict[str, Value]:
        times = (
            {"range": self.preset}
            if self.preset
            else {"from": f"{self.span.start:%Y-%m-%d}", "to": f"{self.span.last_day:%Y-%m-%d}"}
        )
        per = {"per": self.per} if self.per else {}
        return {**times, "by": self.group.name, "show": self.measure.name, **per}

    @property
    def lookups(self) -> dict[str, Value]:
        """The filters as lookups of UsageHour."""
        return {DIMENSIONS[name].column: value for name, value in self.filters.items()}


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a page shows where its query string says nothing."""

    group: str = "organization"
    span: Span | None = None
    """None for the last 30 days."""


USUAL = Defaults()


def read_view(
    query: QueryDict,
    now: datetime,
    fixed: Mapping[str, Value] | None = None,
    defaults: Defaults = USUAL,
) -> View:
    """Read the view that a query string describes. Raises BadViewError."""
    fixed = fixed or {}
    given = {name: str(query[name]) for name in query if query[name] or name in DIMENSIONS}
    preset, span = _read_span(given, now, defaults.span)
    group = _choose(DIMENSIONS, "by", given, defaults.group)
    width = _choose(WIDTHS, "per", given, fit_width(span).name)
    if len(width.list_buckets(span)) > MOST_BUCKETS:
        raise BadViewError(
            f"per={width.name}: that is more than {MOST_BUCKETS} bars. Choose longer ones or fewer "
            "days."
        )
    filters = {name: DIMENSIONS[name].read(given[name]) for name in DIMENSIONS if name in given}
    return View(
        preset=preset,
        span=span,
        group=group,
        measure=_choose(MEASURES, "show", given, "tokens"),
        width=width,
        per=given.get("per", ""),
        filters={**filters, **fixed},
        fixed=fixed,
    )


def refuse_unknown(query: QueryDict) -> None:
    """Raise BadViewError for a parameter that no view has."""
    for name in query:
        if name not in PARAMETERS:
            raise BadViewError(f"{name[:64]}: there is no such parameter. Use {_list(PARAMETERS)}.")


def _choose(table: Mapping[str, T], name: str, given: Mapping[str, str], default: str) -> T:
    chosen = given.get(name, default)
    if chosen not in table:
        raise BadViewError(f"{name}={chosen[:64]}: use {_list(table)}.")
    return table[chosen]


def _read_span(given: Mapping[str, str], now: datetime, default: Span | None) -> tuple[str, Span]:
    """Return the name of a preset, if there is one, and the span. Days win over a preset."""
    midnight = find_midnight(now)
    if "from" not in given and "to" not in given:
        if "range" not in given and default is not None:
            return "", default
        preset = _choose(PRESETS, "range", given, "30d")
        return preset.name, preset.find(midnight)
    last = _read_day(given, "to", now.date())
    first = _read_day(given, "from", last)
    if first > last:
        raise BadViewError(f"from={first}: it must not be after to={last}.")
    if first > now.date():
        raise BadViewError(f"from={first}: this day has not begun. Today is {now.date()} in UTC.")
    end = get_midnight(min(last, now.date())) + timedelta(days=1)
    return "", Span(get_midnight(first), end)


def _read_day(given: Mapping[str, str], name: str, default: date) -> date:
    text = given.get(name)
    if text is None:
        return default
    try:
        day = datetime.strptime(text, "%Y-%m-%d").date()  # noqa: DTZ007 - a date has no zone
    except ValueError:
        raise BadViewError(f"{name}={text[:64]}: use a day such as 2026-11-27.") from None
    if not date(2000, 1, 1) <= day <= date(9000, 1, 1):
        raise BadViewError(f"{name}={day}: use a day from 2000-01-01 on.")
    return day


def _list(names: Mapping[str, object] | Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"
