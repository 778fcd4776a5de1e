"""The panel that explores usage: on its own page, and on those of a key, an organization, a batch.

All of its state is in the query string, so each view has a link.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from completions.admin.display import (
    NONE,
    format_change,
    format_compact,
    format_exact,
    format_money,
    format_share,
)
from completions.admin.usage import figures, limits
from completions.admin.usage.charts import find_budget, make_month_chart, make_stack_chart
from completions.admin.usage.figures import GroupSums, Hours, Month
from completions.admin.usage.labels import Label, name_groups
from completions.admin.usage.periods import PRESETS, WIDTHS
from completions.admin.usage.scope import PERMISSION, Viewer, select_seen
from completions.admin.usage.view_state import (
    DIMENSIONS,
    MEASURES,
    USUAL,
    BadViewError,
    Defaults,
    Measure,
    Value,
    View,
    read_view,
)
from completions.models import ApiKey, Organization, UsageHour
from completions.models.usage import NANOS
from completions.usage.projection import CONFIDENCE, FEWEST

LISTED = 100
"""Groups in the table; CSV has all."""


def make_panel(
    request: HttpRequest, fixed: Mapping[str, Value] | None = None, defaults: Defaults = USUAL
) -> dict[str, Any]:
    """Return what `quire/usage_panel.html` shows, under the name `usage`: nothing without the
    permission, and what is wrong with a query string that no view has."""
    if not request.user.has_perm(PERMISSION):
        return {}
    now = timezone.now()
    try:
        view = read_view(request.GET, now, fixed, defaults)
    except BadViewError as error:
        return {"usage": {"error": str(error), "path": request.path}}
    return {
        "usage": {**_make_controls(view, request.user), **_make_figures(view, request.user, now)}
    }


def select_hours(view: View, user: Viewer) -> Hours:
    """Select the hourly sums that pass the view's filters, of all times."""
    return select_seen(UsageHour.objects.filter(**view.lookups), user)


# Controls ----------------------------------------------------------------------------------------


def _make_controls(view: View, user: Viewer) -> dict[str, Any]:
    free = [name for name in view.filters if name not in view.fixed]
    kept = {name: view.filters[name] for name in free}
    page, table = reverse("operations:usage"), reverse("operations:usage-csv")
    return {
        "presets": [
            (each.title, view.link_to(range=each.name), each.name == view.preset)
            for each in PRESETS.values()
        ],
        "from": view.span.start.date(),
        "to": view.span.last_day,
        "has_days": not view.preset,
        "choices": [
            ("show", "Show", [(m.name, m.title, m is view.measure) for m in MEASURES.values()]),
            (
                "by",
                "by",
                [
                    (each.name, each.title, each is view.group)
                    for each in DIMENSIONS.values()
                    if each.name not in view.fixed
                ],
            ),
            (
                "per",
                "per",
                [
                    (
                        "",
                        f"{view.width.title} (fits)" if not view.per else "what fits",
                        not view.per,
                    ),
                    *((each.name, each.title, each.name == view.per) for each in WIDTHS.values()),
                ],
            ),
        ],
        "hidden": {"range": view.preset, **kept} if view.preset else kept,
        "filters": [
            (
                DIMENSIONS[name].title,
                name_groups(DIMENSIONS[name], [kept[name]], user)[kept[name]].name,
                view.link_to(**{name: None}),
            )
            for name in free
        ],
        "csv_link": f"{table}?{view.make_free_query()}",
        "page_link": f"{page}?{view.make_free_query()}" if view.fixed else "",
    }


# Figures -----------------------------------------------------------------------------------------


def _make_figures(view: View, user: Viewer, now: datetime) -> dict[str, Any]:
    hours = select_hours(view, user)
    groups = figures.load_groups(hours, view, now)
    labels = name_groups(view.group, [row.value for row in groups[:LISTED]], user)
    keys, organizations = _load_owners(view, user)
    owner = _find_owner(view, keys, organizations)
    total = figures.add_up([row.sums for row in groups])
    before = figures.add_up([row.before for row in groups])
    found: dict[str, Any] = {
        "title": view.measure.title,
        "note": f"by {view.group.title}, per {view.width.title}",
        "group_title": view.group.title,
        "used": bool(total["requests"]),
        "tiles": _make_tiles(total, before),
        "rows": [_make_row(view, row, labels[row.value], total) for row in groups[:LISTED]],
        "more": max(0, len(groups) - LISTED),
        "total": _make_cells(GroupSums("", total, before), view.measure, total),
        "notes": _list_notes(view, user),
    }
    if total["requests"]:
        stacks = figures.load_stacks(hours, view, groups)
        found["chart"] = make_stack_chart(view, stacks, labels, owner)
    if "batch" not in view.fixed:
        found |= _make_month(figures.load_month(hours, view.measure, now), view.measure, owner, now)
        uses = limits.list_uses(keys, organizations, now)
        found["limits"] = uses[: limits.LISTED]
        found["more_limits"] = max(0, len(uses) - limits.LISTED)
    return found


def _load_owners(view: View, user: Viewer) -> tuple[list[ApiKey], list[Organization]]:
    """Load the keys and organizations with limits, of those that the filters leave."""
    keys = select_seen(ApiKey.objects.select_related("organization"), user)
    organizations = select_seen(Organization.objects.all(), user)
    if (key := view.filters.get("key")) is not None:
        keys = keys.filter(pk=key)
        organizations = organizations.filter(api_keys__in=[key])
    else:
        keys = keys.active()
    if (organization := view.filters.get("organization")) is not None:
        keys = keys.filter(organization_id=organization)
        organizations = organizations.filter(pk=organization)
    return limits.load_limited(keys), limits.load_budgeted(organizations)


def _find_owner(
    view: View, keys: Sequence[ApiKey], organizations: Sequence[Organization]
) -> ApiKey | Organization | None:
    """Return the key or organization whose whole use the view shows."""
    filtered = set(view.filters)
    if "key" in filtered and filtered <= {"key", "organization"}:
        return keys[0] if keys else None
    if filtered == {"organization"}:
        return organizations[0] if organizations else None
    return None


def _make_tiles(total: Mapping[str, int], before: Mapping[str, int]) -> list[dict[str, str]]:
    tokens = [each["prompt_tokens"] + each["completion_tokens"] for each in (total, before)]
    failed = format_share(total["failed"], total["requests"])
    return [
        {
            "title": "Requests",
            "value": format_compact(total["requests"]),
            "note": f"{format_exact(total['failed'])} failed, {failed}",
            "change": format_change(total["requests"], before["requests"]),
        },
        {
            "title": "Tokens",
            "value": format_compact(tokens[0]),
            "note": f"{format_compact(total['prompt_tokens'])} in, "
            f"{format_compact(total['completion_tokens'])} out",
            "change": format_change(*tokens),
        },
        {
            "title": "Cost",
            "value": format_money(total["cost_nanos"]),
            "note": f"before: {format_money(before['cost_nanos'])}",
            "change": format_change(total["cost_nanos"], before["cost_nanos"]),
        },
    ]


def _make_row(view: View, row: GroupSums, label: Label, total: Mapping[str, int]) -> dict[str, Any]:
    """Return a row of the table; its link goes on inside the group."""
    inside = view.group.next
    if inside in view.filters:
        inside = next(name for name in DIMENSIONS if name not in {*view.filters, view.group.name})
    return {
        "label": label,
        "link": view.link_to(**{view.group.name: row.value, "by": inside}),
        **_make_cells(row, view.measure, total),
    }


def _make_cells(row: GroupSums, measure: Measure, total: Mapping[str, int]) -> dict[str, Any]:
    sums, whole = row.sums, measure.add_up(total)
    return {
        "requests": format_exact(sums["requests"]),
        "failed": format_exact(sums["failed"]) if sums["failed"] else NONE,
        "input": format_compact(sums["prompt_tokens"]),
        "cached": format_share(sums["cached_tokens"], sums["prompt_tokens"]),
        "output": format_compact(sums["completion_tokens"]),
        "cost": format_money(sums["cost_nanos"]),
        "share": format_share(measure.add_up(sums), whole),
        "change": format_change(measure.add_up(sums), measure.add_up(row.before)) or NONE,
    }


def _make_month(
    month: Month, measure: Measure, owner: ApiKey | Organization | None, now: datetime
) -> dict[str, Any]:
    budget = find_budget(owner, measure, "monthly")
    return {
        "month": make_month_chart(month, budget, now),
        "month_title": f"{now:%B}",
        "month_text": _describe_month(month, measure, budget),
    }


def _describe_month(month: Month, measure: Measure, budget: float | None) -> str:
    found = month.projection
    used = _format(list(month.used.values())[-1], measure)
    if found is None:
        return f"{used} so far. A projection needs {FEWEST} whole days of use."
    expected, low, high = (
        _format(each, measure) for each in (found.expected, found.low, found.high)
    )
    text = (
        f"{used} so far; {expected} expected at the end of the month, with "
        f"{100 * CONFIDENCE:.0f} % from {low} to {high}."
    )
    if budget is None:
        return text
    day = found.find_day(budget)
    when = f"reached on {day:%b %-d}" if day else "not reached"
    return f"{text} The monthly budget of {_format(budget, measure)} is {when}, as expected now."


def _format(value: float, measure: Measure) -> str:
    return format_money(round(value * NANOS)) if measure.scale == NANOS else format_compact(value)


def _list_notes(view: View, user: Viewer) -> list[str]:
    """Say from when on the sums tell kinds and batches apart, if the view does and they do not."""
    if not {"kind", "batch"} & {view.group.name, *view.filters}:
        return []
    everything = select_seen(UsageHour.objects.all(), user)
    seen = everything.filter(hour__gte=view.span.start, hour__lt=view.span.end)
    if not seen.filter(kind="").exists():
        return []
    first = figures.find_first_kind(everything)
    since = f"from {first:%Y-%m-%d %H:%M} UTC on" if first else "from the next request on"
    return [f"Kinds and batches are recorded {since}; earlier use has neither."]
