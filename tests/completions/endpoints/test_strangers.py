"""No route reveals that objects of another organization exist."""

import json
import re
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from completions.batches import states
from completions.models import Batch, File, FilePurpose, Session, Upload
from completions.urls import urlpatterns
from tests.completions.live_api import PREFIX, Caller

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

METHODS = ("get", "post", "put", "patch", "delete")
SHARED = {"model_id"}
"""URL parameters whose objects belong to no organization."""


def made_file(owner):
    return File.objects.create(
        organization=owner.organization,
        api_key=owner.key,
        filename="in.jsonl",
        purpose=FilePurpose.BATCH,
        bytes=1,
        content="nowhere",
    )


def made_batch(owner, file):
    batch = Batch(endpoint="/v1/completions", completion_window="24h", output_seconds=60)
    states.set_origin(batch, file, (owner.organization.pk, owner.key.pk), "cmpl-")
    batch.save()
    return batch


def made_upload(owner):
    return Upload.objects.create(
        organization=owner.organization,
        api_key=owner.key,
        filename="in.jsonl",
        bytes=1,
        file_seconds=3600,
        expires_at=timezone.now() + timedelta(hours=1),
    )


def object_routes():
    """Path templates with an object's id, and their methods."""
    for pattern in urlpatterns:
        names = re.findall(r"<\w+:(\w+)>", str(pattern.pattern))
        if set(names) - SHARED:
            view = pattern.callback.view_class
            yield f"/{pattern.pattern}", [name for name in METHODS if hasattr(view, name)]


async def answers_to(caller, method, path):
    """Status and error of the response."""
    response = await getattr(caller, method)(path, **BODIES.get(method, {}))
    return response.status_code, json.loads(response.content).get("error")


BODIES = {"post": {"data": "{}", "content_type": "application/json"}}


async def test_no_route_finds_objects_of_another_organization(live, owner, stranger) -> None:
    live.at_once = False
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "background": True}
    completion = json.loads((await live.post(background=True)).content)["id"]
    response = await live.http.post(
        "/v1/chat/completions",
        json.dumps({"model": "tiny", **chat}),
        content_type="application/json",
    )
    file = await sync_to_async(made_file)(owner)
    batch = await sync_to_async(made_batch)(owner, file)
    upload = await sync_to_async(made_upload)(owner)
    session = await sync_to_async(Session.objects.create)(
        organization=owner.organization,
        api_key=owner.key,
        model="tiny",
        seconds=3600,
        expires_at=timezone.now() + timedelta(hours=1),
    )
    made = await live.http.post(
        "/v1/responses",
        json.dumps({"model": "tiny", "input": "a", "max_output_tokens": 2, "background": True}),
        content_type="application/json",
    )
    conversation = await live.http.post("/v1/conversations", **BODIES["post"])
    ids = {
        "/v1/sessions": session.id,
        "/v1/responses": json.loads(made.content)["id"],
        "/v1/conversations": json.loads(conversation.content)["id"],
        "/v1/completions": completion,
        "/v1/chat": json.loads(response.content)["id"],
        "/v1/files": file.id,
        "/v1/batches": batch.id,
        "/v1/uploads": upload.id,
    }
    them, checked = Caller(stranger), 0
    for template, methods in object_routes():
        (own,) = [value for prefix, value in ids.items() if template.startswith(prefix)]
        unknown = f"{own[:-4]}0000"
        for method in methods:
            answers = [
                await answers_to(them, method, re.sub(r"<\w+:\w+>", each, template))
                for each in (own, unknown)
            ]
            assert answers[0][0] == 404, f"{method} {template}: {answers[0]}"
            assert answers[0] == answers[1], f"{method} {template} distinguishes them"
            checked += 1
    assert checked >= 12
    for path in ("completions", "chat/completions", "files", "batches", "sessions"):
        listed = json.loads((await them.get(f"/v1/{path}")).content)
        assert listed["data"] == []
    # nothing of it was cancelled or deleted, and the owner still sees all
    for job_id in (completion, ids["/v1/chat"], ids["/v1/responses"]):
        assert live.redis.hget(f"{PREFIX}job:{job_id}", "state") == b"queued"
    await batch.arefresh_from_db()
    assert (batch.status, batch.created_at <= timezone.now()) == ("validating", True)
    for prefix, own in ids.items():
        path = "/v1/chat/completions" if prefix == "/v1/chat" else prefix
        assert (await live.http.get(f"{path}/{own}")).status_code == 200
