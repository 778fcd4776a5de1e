"""Refused requests: counted in memory, added to SQL once, bounded where anyone can cause them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from completions.models import Refusal, WrongKey
from completions.models.refusals import ADDRESS_LENGTH, MESSAGE_LENGTH
from completions.usage import refusals
from completions.usage.refusals import MAX_WRONG_KEYS, Counts, RefusalCounter
from tests.completions.conftest import Tenant

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def minutes(*after: int) -> Iterator[datetime]:
    return iter([NOON + timedelta(minutes=each) for each in after])


def count(counter: RefusalCounter, tenant: Tenant, code: str, message: str = "no") -> None:
    counter.count(tenant.organization.pk, tenant.key.pk, code, message, "req_1")


def test_an_hour_has_one_row_per_key_and_code(owner: Tenant, stranger: Tenant) -> None:
    counter = RefusalCounter(minutes(1, 2, 3, 4, 61).__next__)
    count(counter, owner, "invalid_value", "first")
    count(counter, owner, "invalid_value", "latest\0" + "x" * MESSAGE_LENGTH)
    count(counter, stranger, "invalid_value")
    refusals.store(counter.take())
    count(counter, owner, "invalid_value", "later")  # added to the row of another process
    count(counter, owner, "invalid_value", "next hour")
    refusals.store(counter.take())
    rows = Refusal.objects.filter(api_key=owner.key).order_by("hour")
    assert [(row.hour - NOON, row.count, row.message) for row in rows] == [
        (timedelta(), 3, "later"),
        (timedelta(hours=1), 1, "next hour"),
    ]
    assert Refusal.objects.get(api_key=stranger.key).count == 1
    assert not counter.take()


def test_a_long_message_is_cut_and_storable(owner: Tenant) -> None:
    counter = RefusalCounter()
    count(counter, owner, "invalid_value", "\0" + "x" * MESSAGE_LENGTH)
    refusals.store(counter.take())
    (row,) = Refusal.objects.all()
    assert row.message == "\N{SYMBOL FOR NULL}" + "x" * (MESSAGE_LENGTH - 1)


def test_what_could_not_be_stored_is_counted_again(owner: Tenant) -> None:
    counter = RefusalCounter()
    count(counter, owner, "invalid_value", "first")
    counter.count_wrong_key("***", "1.2.3.4", "invalid_api_key")
    failed = counter.take()
    count(counter, owner, "invalid_value", "second")
    counter.count_wrong_key("***", "1.2.3.4", "invalid_api_key")
    counter.put_back(failed)
    refusals.store(counter.take())
    assert (Refusal.objects.get().count, Refusal.objects.get().message) == (2, "second")
    assert WrongKey.objects.get().count == 2


def test_a_deleted_key_does_not_stop_the_others(owner: Tenant, stranger: Tenant) -> None:
    counter = RefusalCounter()
    count(counter, owner, "invalid_value")
    count(counter, stranger, "invalid_value")
    stranger.organization.delete()
    refusals.store(counter.take())
    assert Refusal.objects.get().api_key == owner.key


def test_made_up_keys_cannot_fill_the_table(db: None) -> None:
    counter = RefusalCounter(lambda: NOON)
    for i in range(MAX_WRONG_KEYS + 50):
        counter.count_wrong_key("***", f"10.0.{i // 250}.{i % 250}", "invalid_api_key")
    counter.count_wrong_key("***", "10.0.0.0", "invalid_api_key")
    refusals.store(counter.take())
    assert WrongKey.objects.count() == MAX_WRONG_KEYS + 1
    assert WrongKey.objects.get(address="").count == 50
    assert WrongKey.objects.get(address="10.0.0.0").count == 2


def test_the_next_hour_tells_other_addresses_apart(db: None) -> None:
    clock = [NOON]
    counter = RefusalCounter(lambda: clock[0])
    for i in range(MAX_WRONG_KEYS):
        counter.count_wrong_key("***", str(i), "invalid_api_key")
    clock[0] += timedelta(hours=1)
    counter.count_wrong_key("***", "new", "invalid_api_key")
    assert any(cell.address == "new" for cell in counter.take().wrong_keys)


def test_codes_are_ranked_with_their_latest_answer(owner: Tenant, stranger: Tenant) -> None:
    counter = RefusalCounter(minutes(1, 2, 70, 71).__next__)
    for code, message in (("a", "1"), ("b", "2"), ("b", "3"), ("a", "4")):
        count(counter, owner, code, message)
    refusals.store(counter.take())
    with CaptureQueriesContext(connection) as queries:
        ranked = refusals.rank_codes(Refusal.objects.all())
    assert len(queries) == 2
    assert [(each.code, each.count, each.latest.message) for each in ranked] == [
        ("a", 2, "4"),
        ("b", 2, "3"),
    ]
    assert refusals.rank_codes(Refusal.objects.filter(organization=stranger.organization)) == []


def test_nothing_counted_is_nothing_to_store() -> None:
    assert not Counts()


@pytest.mark.parametrize("since", [NOON, NOON + timedelta(minutes=59)])
def test_a_period_begins_with_a_whole_hour(owner: Tenant, since: datetime) -> None:
    counter = RefusalCounter(minutes(-1, 5).__next__)
    count(counter, owner, "a")
    count(counter, owner, "a")
    refusals.store(counter.take())
    assert [row.count for row in refusals.select_refusals(since)] == [1]


def test_any_text_that_a_proxy_sends_is_storable_as_an_address(db: None) -> None:
    counter = RefusalCounter()
    counter.count_wrong_key("***", "x\0" * 300, "invalid_api_key")
    refusals.store(counter.take())
    assert len(WrongKey.objects.get().address) == ADDRESS_LENGTH


def test_a_row_that_moves_between_two_queries_is_left_out(
    owner: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = RefusalCounter(minutes(1, 2).__next__)
    count(counter, owner, "a")
    refusals.store(counter.take())
    select = QuerySet.select_related

    def flush_first(rows: QuerySet[Refusal], *names: str) -> QuerySet[Refusal]:
        monkeypatch.undo()
        count(counter, owner, "a")
        refusals.store(counter.take())
        return select(rows, *names)

    monkeypatch.setattr(QuerySet, "select_related", flush_first)
    assert refusals.rank_codes(Refusal.objects.all()) == []
