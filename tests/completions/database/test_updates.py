"""Many rows, each with values of its own."""

from django.utils import timezone

from completions.database.updates import update_each
from completions.models import Batch, BatchLine, LineState
from tests.completions.conftest import Tenant


def test_each_row_gets_its_own_values(owner: Tenant):
    batch = Batch.objects.create(
        organization=owner.organization, api_key=owner.key, output_seconds=1,
        expires_at=timezone.now(),
    )  # fmt: skip
    for number in (1, 2, 3):
        BatchLine.objects.create(batch=batch, number=number, job=b"job")
    rows = [(LineState.COMPLETED, b"\0\xff", batch.id, 1), (LineState.FAILED, None, batch.id, 3)]
    update_each(BatchLine, ("state", "result"), ("batch_id", "number"), rows)
    found = BatchLine.objects.order_by("number").values_list("state", "result", "job")
    assert [(state, result and bytes(result), bytes(job)) for state, result, job in found] == [
        (LineState.COMPLETED, b"\0\xff", b"job"),
        (LineState.WAITING, None, b"job"),
        (LineState.FAILED, None, b"job"),
    ]
