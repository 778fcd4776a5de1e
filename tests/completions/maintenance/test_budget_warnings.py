"""Each key and organization is warned once per period, at 80 and at 95 % of a budget."""

import logging
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from completions.maintenance.budget_warnings import warn
from completions.models import BudgetWarning, UsageHour
from completions.models.usage import NANOS

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def use(owner, at=NOON, tokens=0, cost=0):
    UsageHour.objects.create(
        organization=owner.organization, api_key=owner.key, model="m", hour=at,
        prompt_tokens=tokens, completion_tokens=0, cost_nanos=cost * NANOS,
    )  # fmt: skip


def limit(row, **budgets):
    type(row).objects.filter(pk=row.pk).update(**budgets)


def said(now=NOON):
    return [str(warning) for warning in warn(now)]


def test_a_key_is_warned_at_80_and_at_95_percent_and_once(owner, caplog) -> None:
    limit(owner.key, daily_token_budget=1000)
    use(owner, tokens=799)
    assert said() == []
    use(owner, NOON - timedelta(hours=1), tokens=1)
    name = owner.key.name
    with caplog.at_level(logging.WARNING):
        assert said() == [f"Key {name} has used 80 % of its daily token budget."]
    assert caplog.messages == [f"Key {name} has used 80 % of its daily token budget."]
    assert said() == []
    use(owner, NOON - timedelta(hours=2), tokens=150)
    assert said() == [f"Key {name} has used 95 % of its daily token budget."]
    assert said() == []


def test_a_leap_gives_both_and_the_banner_shows_the_higher(owner) -> None:
    limit(owner.organization, monthly_cost_budget=Decimal("20.0000"))
    use(owner, NOON.replace(day=1, hour=0), cost=25)
    assert len(said()) == 2
    assert [str(each) for each in BudgetWarning.objects.current(NOON)] == [
        f"{owner.organization.name} has used 95 % of its monthly cost budget."
    ]


def test_the_next_period_warns_again(owner) -> None:
    limit(owner.key, daily_token_budget=100, monthly_token_budget=1000)
    use(owner, tokens=90)
    assert len(said()) == 1
    tomorrow = NOON + timedelta(days=1)
    assert said(tomorrow) == []
    assert BudgetWarning.objects.current(tomorrow) == []
    use(owner, tomorrow, tokens=90)
    assert len(said(tomorrow)) == 1
    assert BudgetWarning.objects.count() == 2


def test_without_budgets_and_for_revoked_keys_there_is_no_warning(owner) -> None:
    use(owner, tokens=10**9)
    limit(owner.key, daily_token_budget=0)  # such a key can do nothing
    assert said() == []
    limit(owner.key, daily_token_budget=1, revoked_at=NOON)
    assert said() == []


def test_many_keys_take_a_handful_of_queries(owner, django_assert_max_num_queries) -> None:
    limit(owner.key, daily_token_budget=10)
    limit(owner.organization, monthly_token_budget=10)
    use(owner, tokens=10)
    with django_assert_max_num_queries(8):
        assert len(warn(NOON)) == 4
