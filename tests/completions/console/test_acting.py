"""Who of the admin may act as which key."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from completions.accounts import changes
from completions.accounts.audit import Actor
from completions.models import AuditAction, AuditEntry, Scope
from tests.completions.conftest import Tenant

pytestmark = pytest.mark.usefixtures("fake_process")

RUN, JUDGE = "/admin/playground/v1/completions", "/admin/playground/v1/grammars/validate"
BAD_PROMPT = {"model": "tiny", "prompt": [999_999]}
"""Refused after the caller was accepted, before anything is queued."""
RULE = {"model": "tiny", "ebnf": 'root ::= "a"'}


def post(client: Client, path: str, key: Any, body: Any) -> tuple[int, Any]:
    response = client.post(
        path, json.dumps(body), content_type="application/json", headers={"X-Quire-Key": str(key)}
    )
    return response.status_code, response.json()


def test_roles(in_role: Callable[[str], Client], owner: Tenant) -> None:
    viewer, operator = in_role("Viewer"), in_role("Operator")
    assert viewer.get("/admin/playground/").status_code == 200
    assert post(viewer, JUDGE, owner.key.pk, RULE)[1]["valid"] is True
    status, refusal = post(viewer, RUN, owner.key.pk, BAD_PROMPT)
    assert (status, refusal["error"]["code"]) == (403, "permission_denied")
    assert post(operator, RUN, owner.key.pk, BAD_PROMPT)[0] == 400
    assert post(Client(), JUDGE, owner.key.pk, RULE)[0] == 403
    used = AuditEntry.objects.get(action=AuditAction.USED)
    assert (used.actor, used.object_id) == ("admin:Operator", owner.key.pk)


def test_a_key_acts_within_its_bounds(admin: Client, owner: Tenant) -> None:
    key = owner.key
    for given in ("", "x", "-1", "9" * 30):
        assert post(admin, JUDGE, given, RULE)[1]["error"]["param"] == "X-Quire-Key"
    assert post(admin, JUDGE, key.pk + 1000, RULE)[1]["error"]["code"] == "invalid_api_key"
    key.allowed_models = ["texts"]
    key.allowed_networks = ["10.0.0.0/8"]  # bind the secret, which nobody sends
    key.save()
    assert post(admin, JUDGE, key.pk, RULE)[1]["error"]["message"].find("'tiny'") > 0
    key.allowed_models, key.scopes = [], [Scope.BATCHES]
    key.save()
    assert post(admin, JUDGE, key.pk, RULE)[1]["error"]["code"] == "permission_denied"
    key.scopes = [Scope.INFERENCE]
    key.expires_at = timezone.now() - timedelta(seconds=1)
    key.save()
    assert post(admin, JUDGE, key.pk, RULE)[1]["error"]["code"] == "api_key_expired"
    key.expires_at = None
    key.save()
    assert post(admin, JUDGE, key.pk, RULE)[0] == 200
    changes.revoke(key, Actor.from_shell())
    assert post(admin, JUDGE, key.pk, RULE)[1]["error"]["code"] == "api_key_revoked"


def test_another_site_cannot_run_requests(served: None, owner: Tenant) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root", password="x"))
    response = client.post(RUN, "{}", content_type="application/json")
    assert response.status_code == 403
    assert not AuditEntry.objects.filter(action=AuditAction.USED).exists()
