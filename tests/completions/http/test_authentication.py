"""Which keys are accepted, and the errors of the others."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from completions.accounts import changes, keys
from completions.accounts.audit import SERVICE
from completions.models import ApiKey
from tests.completions.conftest import FakeProcess, Tenant

pytestmark = pytest.mark.usefixtures("served")


def error(client: Client, authorization: str | None) -> tuple[int, str]:
    headers = {} if authorization is None else {"Authorization": authorization}
    response = client.get("/v1/models", headers=headers)
    body = response.json()["error"]
    assert body["type"] == "invalid_request_error"
    assert body["param"] is None
    assert response.headers["WWW-Authenticate"] == "Bearer"
    return response.status_code, body["code"]


def test_a_valid_key_is_accepted(
    client: Client, owner: Tenant, stranger: Tenant, fake_process: FakeProcess
) -> None:
    for tenant in (owner, stranger):
        assert client.get("/v1/models", headers=tenant.headers).status_code == 200


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Basic eDp5"])
def test_no_key(client: Client, fake_process: FakeProcess, authorization: str | None) -> None:
    assert error(client, authorization) == (401, "missing_api_key")


def test_the_scheme_is_case_insensitive(api: Client, owner: Tenant) -> None:
    response = api.get("/v1/models", headers={"Authorization": f"bearer {owner.secret}"})
    assert response.status_code == 200


@pytest.mark.parametrize("secret", ["sk-short", "hunter2", "sk-" + "é" * 60, "x" * 10_000])
def test_malformed_keys_are_not_repeated(
    client: Client, fake_process: FakeProcess, secret: str
) -> None:
    response = client.get("/v1/models", headers={"Authorization": f"Bearer {secret}"})
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert secret not in response.content.decode()


def test_an_unknown_key_is_masked(client: Client, db: None, fake_process: FakeProcess) -> None:
    public_id, secret = keys.generate()
    response = client.get("/v1/models", headers={"Authorization": f"Bearer {secret}"})
    message = response.json()["error"]["message"]
    assert f"sk-{public_id}-..." in message
    assert secret[10:] not in message


def test_revoked_and_expired_keys(
    client: Client, owner: Tenant, stranger: Tenant, fake_process: FakeProcess
) -> None:
    changes.revoke(owner.key, SERVICE)
    assert error(client, f"Bearer {owner.secret}") == (401, "api_key_revoked")
    past = timezone.now() - timedelta(seconds=1)
    ApiKey.objects.filter(pk=stranger.key.pk).update(expires_at=past)
    assert error(client, f"Bearer {stranger.secret}") == (401, "api_key_expired")


def test_the_refusal_says_that_an_organization_is_suspended(api: Client, owner: Tenant) -> None:
    owner.organization.suspended_at = timezone.now()
    changes.change(owner.organization, ["suspended_at"], SERVICE)
    response = api.get("/v1/models", headers=owner.headers)
    assert response.status_code == 401
    assert "its organization is suspended" in response.json()["error"]["message"]
