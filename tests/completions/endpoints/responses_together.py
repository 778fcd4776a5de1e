"""Eight responses begin in one conversation at once, and the one that may is joined to it at once.

Prints how many began, and how many items the conversation then has.
"""

from contextlib import suppress

from django.db import transaction
from django.utils import timezone

from completions.accounts import changes
from completions.jobs import durable
from completions.jobs.new_job import ResponseInput
from completions.models import (
    Conversation,
    ConversationItem,
    Job,
    Organization,
    StoredResponse,
)
from completions.models.timed_ids import new_id
from tests.completions.together import run_together

AT_ONCE = 8


organization = Organization.objects.create(name="a")
key, _ = changes.create(organization, "a")
conversation = Conversation.objects.create(organization=organization)


def begin() -> None:
    row = Job(
        id=new_id("resp_"), organization=organization, api_key=key, model="m", request={},
        context={}, deadline_at=timezone.now(), ttl=1,
    )  # fmt: skip
    with suppress(durable.ConversationLockedError):
        given = ResponseInput([{"id": "msg_in"}], "", conversation.pk)
        with transaction.atomic():
            durable._insert_response(row, given)


def join() -> None:
    (row,) = StoredResponse.objects.select_related("conversation")
    row.join({"status": "completed", "output": [{"id": "msg_out"}]})


run_together(*[begin] * AT_ONCE)
print(StoredResponse.objects.count())
run_together(*[join] * AT_ONCE)
print(ConversationItem.objects.count())
