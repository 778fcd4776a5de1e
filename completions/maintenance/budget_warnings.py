"""Warns once per period when a key or an organization has used most of a budget."""

import logging
from collections.abc import Iterator
from dataclasses import astuple
from datetime import datetime
from typing import TypeVar

from django.db.models import Q, QuerySet

from completions.accounts.keys import read_budget
from completions.models import ApiKey, BudgetWarning, Organization
from completions.models.organizations import BUDGETS
from completions.usage.budgets import sum_spent

logger = logging.getLogger(__name__)

PERCENTS = (80, 95)
_BUDGETS = [name for name in BUDGETS if name.endswith("_budget")]
"""The fields of owners, in the order of Budget and Spent."""
_HAS_BUDGET = Q(*((f"{name}__isnull", False) for name in _BUDGETS), _connector=Q.OR)

_Owner = TypeVar("_Owner", ApiKey, Organization)


def warn(now: datetime) -> list[BudgetWarning]:
    """Store and log the warnings that are due and were not yet given. Returns them."""
    keys = ApiKey.objects.active().select_related("organization")
    organizations = Organization.objects.filter(suspended_at=None)
    due = [
        *_find_due("api_key_id", _find_with_budget(keys), now),
        *_find_due("organization_id", _find_with_budget(organizations), now),
    ]
    scopes = {warning.scope for warning in due}
    stored = set(BudgetWarning.objects.filter(scope__in=scopes).values_list(*_IDENTITY))
    new = [each for each in due if tuple(getattr(each, name) for name in _IDENTITY) not in stored]
    BudgetWarning.objects.bulk_create(new, ignore_conflicts=True)
    for warning in new:
        logger.warning(
            "%s",
            warning,
            extra={"organization": warning.organization.name, "budget": warning.budget},
        )
    return new


_IDENTITY = ("scope", "budget", "period", "percent")


def _find_with_budget(rows: "QuerySet[_Owner]") -> "dict[int, _Owner]":
    return {row.pk: row for row in rows.filter(_HAS_BUDGET)}


def _find_due(
    column: str, owners: "dict[int, ApiKey] | dict[int, Organization]", now: datetime
) -> Iterator[BudgetWarning]:
    day = now.date()
    for pk, spent in sum_spent(column, owners.keys(), now).items():
        owner = owners[pk]
        key = owner if isinstance(owner, ApiKey) else None
        organization = owner.organization if isinstance(owner, ApiKey) else owner
        for name, used, most in zip(_BUDGETS, spent, astuple(read_budget(owner)), strict=True):
            for percent in PERCENTS:
                if most and used * 100 >= percent * most:
                    yield BudgetWarning(
                        organization=organization,
                        api_key=key,
                        scope=f"{'k' if key else 'o'}{pk}",
                        budget=name,
                        percent=percent,
                        period=day if name.startswith("daily") else day.replace(day=1),
                    )
