"""The ledger: sums of hours agree with their records, whatever is repeated."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError
from django.db.models import Sum
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from completions.contract.usage import Usage
from completions.jobs.ended import EndedJob
from completions.jobs.events import JobError
from completions.models import StoredPrompt, UsageHour, UsageRecord
from completions.models.usage import BOUNDS_MS, COUNTED, FIRST_TOKEN, LATENCY
from completions.usage import ledger
from tests.completions.conftest import Tenant, new_tenant

NOON = datetime(2026, 11, 20, 12, 30, tzinfo=UTC).timestamp()


def ended(tenant: Tenant, job_id: str, **changes: object) -> EndedJob:
    fields: dict[str, object] = {
        "entry_id": b"1-1", "id": job_id, "kind": "sync", "state": "completed", "model": "m",
        "organization_id": tenant.organization.pk, "api_key_id": tenant.key.pk,
        "created": NOON, "started": NOON + 1, "finished": NOON + 3, "usage": Usage(3, 5, 1, 2),
        "cost": 53, "adapter": "", "first": NOON + 1.5, "attempt": 1, "last_owner": "w",
        "request_id": "req_1", "parameters": {"max_tokens": 5}, "request": b"", "error": None,
        "is_durable": False,
    }  # fmt: skip
    return EndedJob(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_record_has_every_field(owner: Tenant) -> None:
    ledger.record([ended(owner, "a", adapter="polite")])
    row = UsageRecord.objects.get()
    assert (row.queued_ms, row.first_token_ms, row.run_ms) == (1000, 1500, 2000)
    assert (row.forced_tokens, row.cost_nanos, row.adapter) == (2, 53, "polite")
    assert (row.attempts, row.worker, row.parameters) == (1, "w", {"max_tokens": 5})


def test_an_hour_adds_up_what_ended_in_it(owner: Tenant) -> None:
    ledger.record([ended(owner, "a"), ended(owner, "b", state="failed", error=JobError("x", ""))])
    cancelled = ended(owner, "c", state="cancelled", usage=None)
    ledger.record([cancelled, ended(owner, "d")])
    (row,) = UsageHour.objects.all()
    assert row.hour == datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert (row.requests, row.failed, row.cancelled) == (4, 1, 1)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (9, 3, 15)
    assert (row.forced_tokens, row.cost_nanos) == (6, 4 * 53)
    # three seconds, half of them to the first token; only of what somebody waited for and got
    assert [getattr(row, name) for name in LATENCY] == [0] * 8 + [2] + [0] * 6
    assert [getattr(row, name) for name in FIRST_TOKEN] == [0] * 7 + [2] + [0] * 7
    assert BOUNDS_MS[7] == 2000


def test_kinds_and_batches_have_rows_of_their_own(owner: Tenant) -> None:
    one, other = f"{1:032x}", f"{2:032x}"
    ids = (f"cmpl-{one}-1", f"cmpl-{one}-2", f"cmpl-{other}-1", "a line with another id")
    lines = [ended(owner, job_id, kind="batch") for job_id in ids]
    ledger.record([ended(owner, "a"), ended(owner, "b", kind="stream"), *lines])
    rows = UsageHour.objects.order_by("kind", "batch")
    assert list(rows.values_list("kind", "batch", "requests", "latency_8")) == [
        ("batch", "", 1, 0), ("batch", f"batch_{one}", 2, 0), ("batch", f"batch_{other}", 1, 0),
        ("stream", "", 1, 1), ("sync", "", 1, 1),
    ]  # fmt: skip
    ledger.fold(datetime(2026, 11, 22, tzinfo=UTC))
    assert list(rows.values_list("batch", "requests"))[:3] == [
        ("", 1), (f"batch_{one}", 2), (f"batch_{other}", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_what_is_added_are_integers(owner: Tenant, state: str, monkeypatch) -> None:
    """PostgreSQL adds no booleans. The first of a row goes into its sums as it is."""
    added: list[object] = []
    monkeypatch.setattr(ledger, "_add", lambda sums: added.extend(*map(dict.values, sums.values())))
    ledger.record([ended(owner, "a", state=state)])
    assert added
    assert {type(each) for each in added} == {int}


def test_rows_are_kept_apart(owner: Tenant, stranger: Tenant) -> None:
    later = {"created": NOON + 3600, "finished": NOON + 3600}
    jobs = [
        ended(owner, "a"), ended(stranger, "b"), ended(owner, "c", model="n"),
        ended(owner, "d", adapter="x"), ended(owner, "e", **later),
    ]  # fmt: skip
    ledger.record(jobs)
    assert UsageHour.objects.count() == 5
    assert set(UsageHour.objects.values_list("requests", flat=True)) == {1}


def test_repeating_changes_nothing(owner: Tenant) -> None:
    ledger.record([ended(owner, "a")])
    ledger.record([ended(owner, "a"), ended(owner, "b")])
    assert UsageRecord.objects.count() == 2
    assert UsageHour.objects.get().requests == 2


def test_two_processes_at_a_time_do_not_count_twice(
    owner: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.record([ended(owner, "a")])
    with monkeypatch.context() as patch:  # as one that read before the other had committed
        patch.setattr(UsageRecord.objects, "filter", lambda **_: UsageRecord.objects.none())
        with pytest.raises(IntegrityError):
            ledger.record([ended(owner, "a")])


def test_prompts_are_kept_where_that_is_on(owner: Tenant) -> None:
    ledger.record([ended(owner, "a", request=b'{"prompts": [[1, 2]]}'), ended(owner, "b")])
    (stored,) = StoredPrompt.objects.all()
    assert (stored.job_id, stored.document()) == ("a", {"prompts": [[1, 2]]})


def test_old_hours_become_days(owner: Tenant, stranger: Tenant) -> None:
    for i in range(50):
        at = NOON - 5400 * i
        who = (owner, stranger)[i % 2]
        ledger.record([ended(who, f"j{i}", created=at, finished=at + i)])
    before = UsageHour.objects.aggregate(**{name: Sum(name) for name in COUNTED})
    cut = datetime.fromtimestamp(NOON, UTC)
    assert ledger.fold(cut) == 3
    assert ledger.fold(cut) == 0
    assert UsageHour.objects.aggregate(**{name: Sum(name) for name in COUNTED}) == before
    old = UsageHour.objects.filter(hour__lt=cut.replace(hour=0, minute=0))
    assert {row.hour.hour for row in old} == {0}
    assert len(old) == 2 * 3  # of two keys, three days


class TestSums(TestCase):
    @given(
        st.lists(
            st.tuples(
                st.integers(0, 9), st.integers(0, 50), st.integers(0, 50), st.integers(0, 72)
            ),
            max_size=20,
        )
    )
    def test_sums_agree_with_records(self, drawn: list[tuple[int, int, int, int]]) -> None:
        tenant = new_tenant("drawn")
        for job, prompt, completion, hours in drawn:
            at = NOON + timedelta(hours=hours).total_seconds()
            used = Usage(prompt, completion)
            ledger.record([ended(tenant, f"j{job}", finished=at, usage=used, cost=prompt)])
        names = ("prompt_tokens", "completion_tokens", "cost_nanos")
        sums = {name: Sum(name) for name in names}
        assert UsageHour.objects.aggregate(**sums) == UsageRecord.objects.aggregate(**sums)
