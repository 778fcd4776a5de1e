"""No route reveals that objects of another organization exist, answers without a key, or takes a
body that it does not know."""

import json
import re
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient
from django.utils import timezone

from completions.batches import states
from completions.models import ApiKey, Batch, File, FilePurpose, Role, Session, Upload
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


@pytest.mark.represented_by("None")
@pytest.mark.parametrize("key", [None, "Bearer sk-nobody-knows-0", "Basic YTpi"])
async def test_every_route_wants_a_key(live, key) -> None:
    client, checked = AsyncClient(headers={"Authorization": key} if key else {}), 0
    for pattern in urlpatterns:
        view = getattr(pattern.callback, "view_class", None)
        if view is None or not view.authenticated:
            continue
        path = "/" + re.sub(r"<\w+:\w+>", "a", str(pattern.pattern))
        for method in (name for name in METHODS if hasattr(view, name)):
            response = await getattr(client, method)(path, **BODIES.get(method, {}))
            assert response.status_code == 401, f"{method} {path}"
            assert json.loads(response.content)["error"]["message"]
            checked += 1
    assert checked > 50


def list_bodies(document):
    """Yield the paths that take JSON, without those of objects, whose ids must exist."""
    for path, methods in document["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        if "application/json" in content and "{" not in path:
            yield path


def test_every_route_refuses_bodies_that_it_does_not_know(api, owner) -> None:
    ApiKey.objects.filter(pk=owner.key.pk).update(role=Role.ADMIN)
    paths = list(list_bodies(api.get("/v1/openapi.json").json()))
    assert len(paths) > 15
    made = api.post("/v1/conversations", **BODIES["post"]).json()["id"]
    paths += [f"/v1/conversations/{made}", f"/v1/conversations/{made}/items"]
    for path in paths:
        for body in ([], 1, "a", None, {"nobody_knows": 1}):
            response = api.post(path, json.dumps(body), content_type="application/json")
            assert response.status_code == 400, f"{path} {body}: {response.content}"
            error = response.json()["error"]
            if body == {"nobody_knows": 1}:
                assert "nobody_knows" in error["message"], f"{path}: {error}"
