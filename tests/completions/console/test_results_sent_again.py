"""Lines of an ended batch, found by a filter and sent again as a new batch."""

import json
import re
from collections.abc import Callable

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from completions.models import AuditAction, AuditEntry, Batch, File
from tests.completions.conftest import Tenant

pytestmark = pytest.mark.usefixtures("fake_process", "folder")


def test_a_button_says_what_is_sent_again(
    in_role: Callable[[str], Client],
    batch: Batch,
) -> None:
    operator = in_role("Operator")
    for asked, said in (
        ({}, "140 lines, about 0.00"),
        ({"status": "failed"}, "14 lines, about 0.00"),
        ({"reason": "length", "status": "failed"}, "0 lines, about 0.00"),
        ({"text": "grey"}, "all lines that the filter finds"),
    ):
        page = operator.get(f"/admin/batches/{batch.pk}/results/", asked).content.decode()
        assert f">Resubmit {said}</button>" in page


def test_what_is_filtered_is_sent_again(in_role: Callable[[str], Client], batch: Batch) -> None:
    path = f"/admin/batches/{batch.pk}/results/resubmit/?status=failed"
    assert in_role("Viewer").post(path).status_code == 403
    assert not Batch.objects.filter(resubmission_of=batch.pk).exists()
    page = in_role("Operator").post(path, follow=True).content.decode()
    assert "sends lines of" in page, re.findall(r"Nothing was[^<]*", page)
    again = Batch.objects.get(resubmission_of=batch.pk)
    assert again.api_key == batch.api_key
    entry = AuditEntry.objects.get(action=AuditAction.USED)
    assert (entry.object_id, entry.actor[:6]) == (batch.api_key_id, "admin:")
    assert entry.changes == {"batch": [batch.id, again.id]}
    file = File.objects.get(id=again.input_file_id)
    with file.content.open("rb") as content:
        assert file.bytes == len(content.read())
        content.seek(0)
        sent = [json.loads(line)["custom_id"] for line in content]
    assert sent == [f"line-{n}" for n in range(10, 141, 10)]


@pytest.mark.parametrize("limit", ["MAX_QUEUED_LINES", "MAX_STORED_BYTES"])
def test_lines_that_are_not_sent_again_leave_no_file(
    in_role: Callable[[str], Client],
    batch: Batch,
    owner: Tenant,
    settings: Settings,
    limit: str,
) -> None:
    setattr(settings, limit, 0)
    before = File.objects.count()
    path = f"/admin/batches/{batch.pk}/results/resubmit/?status=failed"
    page = in_role("Operator").post(path, follow=True).content.decode()
    assert "Nothing was sent." in page
    secret = {"authorization": f"Bearer {owner.secret}"}
    refused = Client(headers=secret).post(f"/v1/batches/{batch.pk}/resubmit")
    code = {"MAX_QUEUED_LINES": "batch_limit_exceeded"}.get(limit, "storage_limit_exceeded")
    assert refused.json()["error"]["code"] == code
    assert File.objects.count() == before
    assert not Batch.objects.filter(resubmission_of=batch.pk).exists()
