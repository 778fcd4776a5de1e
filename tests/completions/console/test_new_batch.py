"""A batch made in the admin: of a file or of pasted lines, under a key that the user manages."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from completions.accounts import changes
from completions.accounts.audit import SERVICE
from completions.models import (
    AuditAction,
    AuditEntry,
    Batch,
    BatchStatus,
    File,
    MemberRole,
    Scope,
)
from tests.completions.admin.members import join, sign_in
from tests.completions.conftest import Tenant

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("fake_process", "folder"),
]

PAGE = "/admin/batches/new/"


def line(number: int, **body: Any) -> str:
    body = {"model": "tiny", "prompt": [number], "max_tokens": 2, **body}
    given = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(given)


LINES = f"{line(1)}\r\n{line(2, temperature=9)}\r\n{line(3)}\r\n"


def form(owner: Tenant, **fields: Any) -> dict[str, Any]:
    usual = {"key": owner.key.pk, "lines": LINES, "window": "24h", "pilot": 0}
    usual |= {"on_late": "accept", "on_invalid": "skip", "start": "yes"}
    return {name: value for name, value in {**usual, **fields}.items() if value is not None}


def test_pasted_lines_become_a_batch(in_role: Callable[[str], Client], owner: Tenant) -> None:
    fields = form(owner, name="Night of reviews", window="2d", receipts="on", close="on")
    response = in_role("Operator").post(PAGE, fields)
    batch = Batch.objects.get()
    assert response.headers["Location"] == f"/admin/completions/batch/{batch.pk}/change/"
    assert (batch.api_key_id, batch.organization_id) == (owner.key.pk, owner.organization.pk)
    assert (batch.name, batch.completion_window, batch.endpoint) == (
        "Night of reviews", "2d", "/v1/completions",
    )  # fmt: skip
    assert (batch.receipts, batch.close, batch.held, batch.pilot) == (True, True, False, None)
    with File.objects.get(pk=batch.input_file_id).content.open("rb") as content:
        assert content.read() == LINES.encode()
    entry = AuditEntry.objects.get(action=AuditAction.USED)
    assert (entry.actor, entry.object_id) == ("admin:Operator", owner.key.pk)
    assert entry.changes == {"batch": [None, batch.pk]}


def test_a_file_becomes_a_batch_of_its_first_lines_endpoint(admin: Client, owner: Tenant) -> None:
    chat = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}}
    file = SimpleUploadedFile("night.jsonl", b"\n" + json.dumps(chat).encode())
    fields = form(owner, lines=None, file=file)
    response = admin.post(PAGE, fields, headers={"HX-Request": "true"})
    batch = Batch.objects.get()
    assert response.headers["HX-Redirect"] == f"/admin/completions/batch/{batch.pk}/change/"
    assert (batch.endpoint, batch.metadata) == ("/v1/chat/completions", None)
    stored = File.objects.get(pk=batch.input_file_id)
    assert (stored.filename, stored.bytes) == ("night.jsonl", file.size)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"lines": ""}, "Choose a file, or paste lines."),
        ({"file": SimpleUploadedFile("a", b"{}")}, "Choose a file or paste lines, not both."),
        ({"window": "90s"}, "must be minutes, hours or days"),
        ({"pilot": 1001}, "less than or equal to 1000"),
        ({"key": 0}, "Select a valid choice"),
        ({"on_late": "maybe"}, "Select a valid choice"),
    ],
)
def test_what_is_wrong_is_said(
    admin: Client,
    owner: Tenant,
    fields: dict[str, Any],
    said: str,
) -> None:
    page = admin.post(PAGE, form(owner, **fields)).content.decode()
    assert "Nothing was sent." in page
    assert said in page
    assert not Batch.objects.exists()
    assert not File.objects.exists()


@pytest.mark.parametrize("limit", ["MAX_QUEUED_LINES", "MAX_STORED_BYTES"])
def test_a_refused_batch_leaves_no_file(
    admin: Client,
    owner: Tenant,
    settings: Settings,
    limit: str,
) -> None:
    setattr(settings, limit, 0)
    page = admin.post(PAGE, form(owner)).content.decode()
    assert "Nothing was sent." in page
    assert not Batch.objects.exists()
    assert not File.objects.exists()


def test_who_may_send(
    in_role: Callable[[str], Client],
    owner: Tenant,
) -> None:
    viewer = in_role("Viewer")
    assert viewer.get(PAGE).status_code == 403
    assert viewer.post(PAGE, form(owner)).status_code == 403
    assert "batch/add/" not in viewer.get("/admin/completions/batch/").content.decode()
    operator = in_role("Operator")
    assert "batch/add/" in operator.get("/admin/completions/batch/").content.decode()
    assert operator.get("/admin/completions/batch/add/").headers["Location"] == PAGE
    assert Client().post(PAGE, form(owner)).status_code == 302
    assert not Batch.objects.exists()


def test_a_member_sends_with_their_own_keys(owner: Tenant, stranger: Tenant, served: None) -> None:
    member = join(owner.organization, "ada")
    client = sign_in(member)
    own, _ = changes.create(owner.organization, "of ada", SERVICE)
    own.owner = member
    own.save()
    choices = client.get(PAGE).context["form"].fields["key"].choices
    assert choices == [(own.pk, f"{owner.organization.name} / of ada")]
    for key in (owner.key, stranger.key):
        assert (
            "Select a valid choice" in client.post(PAGE, form(owner, key=key.pk)).content.decode()
        )
    assert client.post(PAGE, form(owner, key=own.pk)).status_code == 302
    assert Batch.objects.get().api_key_id == own.pk
    theirs = sign_in(join(stranger.organization, "eve", MemberRole.ADMIN))
    path = f"/admin/completions/batch/{Batch.objects.get().pk}/change/"
    assert theirs.get(path).status_code in (302, 404)


def test_keys_that_may_not_send_are_not_offered(admin: Client, owner: Tenant) -> None:
    def offered() -> int:
        return len(admin.get(PAGE).context["form"].fields["key"].choices)

    assert offered() == 1
    owner.key.scopes = [Scope.INFERENCE]
    owner.key.save()
    assert offered() == 0
    assert "No key may send batches." in admin.get(PAGE).content.decode()
    owner.key.scopes = list(Scope.values)
    owner.key.save()
    owner.organization.suspended_at = timezone.now()
    owner.organization.save()
    assert offered() == 0


@pytest.mark.integration
def test_a_forecast_waits_for_its_start(
    admin: Client,
    owner: Tenant,
    bench: Any,
) -> None:
    """Every line is checked, the refused one has a reason, and nothing runs before the start."""
    admin.post(PAGE, form(owner, start=None, forecast="yes", pilot=1))
    batch = Batch.objects.get()
    page = f"/admin/completions/batch/{batch.pk}/change/"
    assert "Every line is checked" in admin.get(page).content.decode()
    bench.turn()
    shown = admin.get(page).content.decode()
    assert "Held: only its pilot runs" in shown
    assert "line 2: temperature" in shown
    assert "Forecast cost" in shown
    assert bench.work() == 1
    bench.turn()
    assert bench.work() == 0
    assert "1 / 1" in admin.get(page).content.decode()
    admin.post(f"/admin/batches/{batch.pk}/start/")
    bench.turn()
    assert bench.work() == 1
    bench.turn()
    bench.turn()
    batch.refresh_from_db()
    assert (batch.status, batch.completed, batch.failed) == (BatchStatus.COMPLETED, 2, 1)
    used = AuditEntry.objects.filter(action=AuditAction.USED).order_by("pk")
    assert [entry.changes for entry in used] == [
        {"batch": [None, batch.pk]}, {"batch started": [None, batch.pk]},
    ]  # fmt: skip
    again = admin.post(f"/admin/batches/{batch.pk}/start/", follow=True).content.decode()
    assert "is not held" in again
    assert "Resubmit 1 line" in again


@pytest.mark.integration
def test_a_forecast_needs_no_pilot(admin: Client, owner: Tenant, bench: Any) -> None:
    admin.post(PAGE, form(owner, start=None, forecast="yes", pilot=0))
    bench.turn()
    assert bench.work() == 0
    batch = Batch.objects.get()
    assert (batch.status, batch.held, batch.pilot) == (BatchStatus.IN_PROGRESS, True, 0)
    page = admin.get(f"/admin/completions/batch/{batch.pk}/change/").content.decode()
    assert "Forecast cost" in page
    admin.post(f"/admin/batches/{batch.pk}/start/")
    bench.turn()
    assert bench.work() == 2
