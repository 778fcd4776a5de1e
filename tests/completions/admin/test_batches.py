"""A batch in the admin: how far it is, what failed, and stopping it."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from completions.accounts import changes
from completions.accounts.audit import Actor
from completions.admin.live import state
from completions.batches import lines, states, writing
from completions.batches.summary import Summary
from completions.exceptions import invalid_parameter
from completions.models import (
    AuditAction,
    AuditEntry,
    Batch,
    BatchLine,
    BatchStatus,
    LineState,
)
from tests.completions.admin.test_tables import record
from tests.completions.conftest import Tenant


@pytest.fixture
def batch(owner: Tenant) -> Batch:
    now = timezone.now()
    return Batch.objects.create(
        organization=owner.organization,
        api_key=owner.key,
        endpoint="/v1/completions",
        model="tiny",
        job_prefix="cmpl-",
        input_file_id="file-gone",
        completion_window="24h",
        output_seconds=60,
        status=BatchStatus.IN_PROGRESS,
        total=400,
        completed=197,
        failed=3,
        created_at=now - timedelta(minutes=5),
        in_progress_at=now - timedelta(minutes=4),
        expires_at=now + timedelta(hours=23, minutes=30),
        pace=[[now.timestamp() - 50, 100]],
    )


def page_of(admin: Client, batch: Batch) -> str:
    response = admin.get(f"/admin/completions/batch/{batch.pk}/change/")
    assert response.status_code == 200
    return response.content.decode()


def test_progress_rate_and_time_left(admin: Client, batch: Batch) -> None:
    page = page_of(admin, batch)
    for shown in ("50.0 %", "197 completed", "closes in 23 h"):
        assert shown in page
    listed = admin.get("/admin/completions/batch/").content.decode()
    assert "200 / 400, 3 failed" in listed
    for text in (page, listed):  # 100 lines in 50 s and a little more
        assert re.search(r">[12][0-9.]*/s<", text)
        assert re.search(r">\d+ min( \d+ s)?<", text)


def test_a_held_batch_says_so(admin: Client, batch: Batch) -> None:
    """Also while no worker has reported a cache by which its order is planned."""
    waits = "only its pilot runs until it is started"
    assert waits not in page_of(admin, batch)
    Batch.objects.update(held=True, plan=None)
    assert waits in page_of(admin, batch)
    Batch.objects.update(status=BatchStatus.CANCELLED, ended_at=timezone.now())
    assert waits not in page_of(admin, batch)


def test_errors_are_grouped_with_the_lines_they_met(
    admin: Client, owner: Tenant, stranger: Tenant, batch: Batch
) -> None:
    common = {"kind": "batch", "status": "failed"}
    for number, code in ((7, "worker_error"), (12, "grammar_error"), (31, "worker_error")):
        record(owner, number, job_id=batch.job_id(number), error_code=code, **common)
    record(stranger, 99, job_id="cmpl-other-99", error_code="queue_timeout", **common)
    page = page_of(admin, batch)
    assert "queue_timeout" not in page
    assert page.index("worker_error") < page.index("grammar_error")  # the most frequent first
    for number in (7, 12, 31):
        assert f'href="/admin/jobs/{batch.job_id(number)}/"' in page


def test_refused_lines_have_no_jobs_to_link_to(admin: Client, owner: Tenant, batch: Batch) -> None:
    """They are counted by the summary alone, and no line numbers precede "and 1 more"."""
    Batch.objects.update(summary={"errors": {"decimal_above_max_value": 1, "worker_error": 3}})
    record(
        owner, 7, kind="batch", status="failed", error_code="worker_error", job_id=batch.job_id(7)
    )
    page = page_of(admin, batch)
    assert re.findall(r"and \d+ more", page) == ["and 2 more"]
    assert page.count("refused before they ran") == 1
    Batch.objects.update(status=BatchStatus.COMPLETED, ended_at=timezone.now())
    ended = page_of(admin, batch)
    for code in ("decimal_above_max_value", "worker_error"):
        assert f"/admin/batches/{batch.pk}/results/?reason={code}" in ended
    assert " more</span>" not in ended


def test_the_summary_of_its_results(admin: Client, batch: Batch) -> None:
    summary = Summary({"children": {"kind": {"counted": True}}})
    for text, end in (('{"kind": "<b>"}', "stop"), ('{"kind": "x', "length")):
        body = {
            "choices": [{"text": text, "finish_reason": end}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 4321},
        }
        meta = {"attempts": 1, "queue_seconds": 0.5, "run_seconds": 2.0}
        summary.add({"response": {"status_code": 200, "body": body}, "error": None, "meta": meta})
    refused = {"response": None, "error": {"code": "batch_cancelled"}, "meta": {"attempts": 0}}
    summary.add(refused)
    Batch.objects.update(summary=summary.as_dict(), counted_fields=summary.counted_fields)
    page = page_of(admin, batch)
    for shown in (
        "seconds with a worker",
        "4.32k",
        "Cut by max_tokens",
        "/kind",
        "batch_cancelled",
    ):
        assert shown in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_why_a_batch_was_refused(admin: Client, batch: Batch) -> None:
    Batch.objects.update(
        status=BatchStatus.FAILED,
        errors=[{"code": "invalid_value", "line": 17, "message": "no such thing", "param": "x"}],
    )
    page = page_of(admin, batch)
    assert "no such thing" in page
    assert "Cancel batch" not in page


def test_a_refused_line_is_named_with_what_it_was_told(admin: Client, batch: Batch) -> None:
    """While the batch runs, and once its lines are in its files."""
    error = invalid_parameter("temperature", "9", "from 0 to 2")
    line = BatchLine(batch=batch, number=17, custom_id="a", state=LineState.FAILED, job=b"")
    line.result = lines.compress_json(lines.make_refused_result("req", error, batch.endpoint))
    line.save()
    Batch.objects.update(summary={"errors": {"invalid_value": 1}})
    told = "line 17: temperature is &#x27;9&#x27;; it must be from 0 to 2."
    assert told in page_of(admin, batch)
    batch.refresh_from_db()
    assert writing.write_files(batch, lambda: True)
    batch.organization.store_prompts = True
    batch.organization.save()
    page = page_of(admin, batch)
    assert told in page
    assert f'href="/admin/batches/{batch.pk}/results/17/"' in page


def test_a_batch_has_a_name(admin: Client, batch: Batch) -> None:
    Batch.objects.update(metadata={"name": "Night <1>"})
    assert "Night &lt;1&gt;" in page_of(admin, batch)
    for term, is_found in (("night", True), ("noon", False), (batch.pk, True)):
        listed = admin.get("/admin/completions/batch/", {"q": term}).content.decode()
        assert (batch.pk in listed.replace(f'value="{batch.pk}"', "")) == is_found, term
        assert ("Night &lt;1&gt;" in listed) == is_found


def test_a_page_is_renewed_until_the_batch_ends(admin: Client, batch: Batch) -> None:
    assert 'hx-trigger="every 3s' in page_of(admin, batch)
    Batch.objects.update(status=BatchStatus.COMPLETED, ended_at=timezone.now())
    assert 'hx-trigger="every 3s' not in page_of(admin, batch)


def test_a_resubmission_says_what_it_is_likely_to_cost(
    admin: Client, owner: Tenant, batch: Batch
) -> None:
    assert "Resubmit" not in page_of(admin, batch)
    record(owner, 7, kind="batch", job_id=batch.job_id(7), cost_nanos=197 * 10**9)
    Batch.objects.update(status=BatchStatus.COMPLETED, ended_at=timezone.now())
    assert "Resubmit 3 lines, about 3.00" in page_of(admin, batch)
    Batch.objects.update(completed=0)
    assert "Resubmit 3 lines<" in page_of(admin, batch)


def test_an_operator_cancels_a_batch(admin: Client, batch: Batch) -> None:
    assert "Cancel batch" in page_of(admin, batch)
    admin.post(f"/admin/batches/{batch.pk}/cancel/")
    batch.refresh_from_db()
    assert batch.status == BatchStatus.CANCELLING
    (entry,) = AuditEntry.objects.filter(action=AuditAction.USED)
    assert (entry.actor, entry.changes) == ("admin:root", {"batch cancelled": [None, batch.pk]})
    assert "Cancelled by admin:root" in page_of(admin, batch)
    again = admin.post(f"/admin/batches/{batch.pk}/cancel/", follow=True)
    assert "is already cancelling" in again.content.decode()


def test_a_batch_says_who_cancelled_it(admin: Client, batch: Batch) -> None:
    states.cancel(batch.id, timezone.now())
    assert "Cancelled by its client" in page_of(admin, batch)
    changes.revoke(batch.api_key, Actor.from_shell())
    Batch.objects.update(cancelling_at=timezone.now())
    assert "Cancelled by the end of its key" in page_of(admin, batch)


def test_a_line_leads_to_its_batch(
    admin: Client, owner: Tenant, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable() -> None:
        raise state.UnreachableError(state.UNREACHABLE)

    monkeypatch.setattr(state, "open_shards", unreachable)
    record(owner, 7, job_id=batch.job_id(7), kind="batch")
    page = admin.get(f"/admin/jobs/{batch.job_id(7)}/").content.decode()
    assert f"/admin/completions/batch/{batch.pk}/change/" in page
    assert "Line 7" in page
