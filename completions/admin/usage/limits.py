"""How much of their limits and budgets keys and organizations use now."""

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import datetime

from django.db.models import F, Q, QuerySet, Sum
from django.urls import reverse

from completions.accounts.keys import read_budget, read_limits
from completions.admin.display import format_compact, format_money
from completions.admin.live import state
from completions.contract.limits import CONCURRENCY, LIMITS
from completions.jobs import operate
from completions.jobs.limits import LimitsUsed
from completions.jobs.sharding.shards import run_each
from completions.jobs.store import SyncStore
from completions.models import UNFINISHED, ApiKey, ApiKeyQuerySet, Batch, Organization
from completions.models.organizations import BUDGETS
from completions.usage.budgets import Spent, sum_spent

READ = 500
"""Keys and organizations whose use is read."""
LISTED = 20
"""Keys and organizations in the table; there may be more with limits."""
_BUDGET_TITLES = ("tokens today", "tokens this month", "cost today", "cost this month")
"""In the order of Budget and Spent."""
_HIGH = 90
"""Percent from which on a bar is red."""


@dataclass(frozen=True, slots=True)
class Use:
    """How much of one limit is used."""

    what: str
    used: str
    most: str
    percent: int

    @property
    def is_high(self) -> bool:
        return self.percent >= _HIGH


@dataclass(frozen=True, slots=True)
class Owner:
    """A key or an organization with what it uses of its limits."""

    name: str
    note: str
    link: str
    uses: Sequence[Use]

    @property
    def highest(self) -> int:
        return max((use.percent for use in self.uses), default=0)


def load_limited(rows: ApiKeyQuerySet) -> list[ApiKey]:
    """Load the keys with limits, of many those that were used last."""
    limited = rows.filter(_has([*BUDGETS, *(limit.column for limit in LIMITS)]))
    return list(limited.order_by(F("last_used_at").desc(nulls_last=True))[:READ])


def load_budgeted(rows: "QuerySet[Organization]") -> list[Organization]:
    return list(rows.filter(_has(BUDGETS))[:READ])


def _has(columns: Iterable[str]) -> Q:
    return Q(*((f"{name}__isnull", False) for name in columns), _connector=Q.OR)


def list_uses(
    keys: Sequence[ApiKey], organizations: Sequence[Organization], now: datetime
) -> list[Owner]:
    """Return the keys and organizations with limits, those closest to one of theirs first."""
    live = _read_live(keys)
    of_keys = sum_spent("api_key_id", [key.pk for key in keys], now)
    of_organizations = sum_spent("organization_id", [each.pk for each in organizations], now)
    enqueued = (
        _count_enqueued("api_key_id", keys),
        _count_enqueued("organization_id", organizations),
    )
    owners = [
        *(
            Owner(
                each.name,
                "all keys of the organization",
                reverse("admin:completions_organization_change", args=[each.pk]),
                [*_list_budgets(each, of_organizations[each.pk], enqueued[1].get(each.pk, 0))],
            )
            for each in organizations
        ),
        *(
            Owner(
                key.name,
                key.organization.name,
                reverse("admin:completions_apikey_change", args=[key.pk]),
                [
                    *_list_rates(key, live.get(key.pk)),
                    *_list_budgets(key, of_keys[key.pk], enqueued[0].get(key.pk, 0)),
                ],
            )
            for key in keys
        ),
    ]
    return sorted((each for each in owners if each.uses), key=lambda each: -each.highest)


def _read_live(keys: Sequence[ApiKey]) -> dict[int, LimitsUsed]:
    """Read the limits that Redis counts; nothing of a shard that does not answer."""
    with suppress(state.UnreachableError), state.open_shards() as shards:

        def read(store: SyncStore) -> Mapping[int, LimitsUsed]:
            own = [key for key in keys if shards.find_by_organization(key.organization_id) is store]
            return operate.read_limits_used(store, {key.pk: read_limits(key).rates for key in own})

        return dict(ChainMap(*map(dict, run_each(shards, read))))
    return {}


def _count_enqueued(
    column: str, owners: Sequence[ApiKey] | Sequence[Organization]
) -> dict[int, int]:
    limited = [owner.pk for owner in owners if owner.max_enqueued_tokens is not None]
    if not limited:
        return {}
    batches = Batch.objects.filter(**{f"{column}__in": limited}, status__in=UNFINISHED).order_by()
    return dict(batches.values_list(column).annotate(tokens=Sum("enqueued_tokens")))


def _list_rates(key: ApiKey, used: LimitsUsed | None) -> Iterable[Use]:
    if used is None:
        return
    counts = {**used.rates, CONCURRENCY.name: used.concurrency}
    for limit in LIMITS:
        most = getattr(key, limit.column)
        if most is not None:
            count = round(counts[limit.name])
            yield _make_use(limit.unit, format_compact(count), format_compact(most), count, most)


def _list_budgets(owner: ApiKey | Organization, spent: Spent, enqueued: int) -> Iterable[Use]:
    rows = zip(_BUDGET_TITLES, spent, astuple(read_budget(owner)), strict=True)
    for title, used, most in rows:
        if most is not None:
            show = format_money if title.startswith("cost") else format_compact
            yield _make_use(title, show(used), show(most), used, most)
    if (most := owner.max_enqueued_tokens) is not None:
        shown = format_compact(enqueued), format_compact(most)
        yield _make_use("prompt tokens in batches", *shown, enqueued, most)


def _make_use(what: str, used: str, most: str, count: int, limit: int) -> Use:
    return Use(what, used, most, min(100, round(100 * count / limit)) if limit else 100)
