"""What batches may hold and spend."""

import pytest
from django.utils import timezone

from completions.batches import feeding
from completions.jobs.limits import BudgetReachedError
from completions.models import ApiKey, Organization
from tests.completions.bench import request

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


def requests(count, prompt=(65, 66)):
    return [request(f"r{i}", prompt) for i in range(count)]


@pytest.mark.parametrize("owner_type", [ApiKey, Organization])
def test_prompts_of_unended_batches_are_limited(bench, owner, owner_type) -> None:
    """Of two batches with four tokens each, the second ends the patience."""
    owner_type.objects.update(max_enqueued_tokens=7)
    first, second = bench.create(requests(2)), bench.create(requests(2))
    bench.turn()
    assert bench.get(first)["status"] == "in_progress"
    seen = bench.get(second)
    assert seen["status"] == "failed"
    (error,) = seen["errors"]["data"]
    assert error["code"] == "token_limit_exceeded"
    assert "there are 4, and this file has 4" in error["message"]
    assert bench.run_to_end(first)["status"] == "completed"
    assert bench.run_to_end(bench.create(requests(2)))["status"] == "completed"


def test_a_file_that_never_fits_fails(bench, owner) -> None:
    ApiKey.objects.update(max_enqueued_tokens=3)
    batch = bench.create(requests(2))
    bench.turn()
    assert bench.get(batch)["status"] == "failed"


def test_lines_wait_for_another_budget(bench, owner, monkeypatch) -> None:
    """A line can use four tokens; what the first two leave is too little for the third."""
    monkeypatch.setattr(feeding, "BUDGET_PAUSE", 0.0)
    ApiKey.objects.update(daily_token_budget=9)
    batch = bench.create(requests(3))
    for _ in range(5):
        bench.turn()
        bench.work()
    seen = bench.get(batch)
    assert (seen["status"], seen["request_counts"]["completed"]) == ("in_progress", 2)
    assert seen["request_counts"]["failed"] == 0
    ApiKey.objects.update(daily_token_budget=12)
    assert bench.run_to_end(batch)["request_counts"]["completed"] == 3


def test_a_spent_budget_is_not_tried_again_at_once(bench, owner, monkeypatch) -> None:
    ApiKey.objects.update(daily_token_budget=0)
    submit, tried = feeding.submit_durable, []

    def counted(store, jobs, check_after):
        replies = submit(store, jobs, check_after)
        tried.extend(r for r in replies if isinstance(r, BudgetReachedError))
        return replies

    monkeypatch.setattr(feeding, "submit_durable", counted)
    batch = bench.create(requests(3))
    for _ in range(3):
        bench.turn()
    assert not bench.sent
    assert bench.get(batch)["status"] == "in_progress"
    assert len(tried) == 3  # each line once


def test_lines_of_a_suspended_organization_rest(bench, owner) -> None:
    batch = bench.create(requests(2))
    Organization.objects.update(suspended_at=timezone.now())
    for _ in range(2):
        bench.turn()
    assert not bench.sent
    Organization.objects.update(suspended_at=None)
    assert bench.run_to_end(batch)["request_counts"]["completed"] == 2
