"""Scopes, networks, models and priorities of keys."""

from typing import Any

import pytest
from django.test import Client

from completions.http.base import AsyncAPIView
from completions.models import ApiKey, Scope
from completions.urls import urlpatterns
from tests.completions.conftest import FakeProcess, Tenant

PROMPT = {"model": "tiny", "prompt": [1], "max_tokens": 1}
FREE = {"ModelsView", "ModelView"}
"""Views that every key may use."""


def restrict(tenant: Tenant, **fields: Any) -> None:
    ApiKey.objects.filter(pk=tenant.key.pk).update(**fields)


def refused(response: Any) -> str:
    body = response.json()["error"]
    assert (response.status_code, body["type"]) == (403, "permission_error"), body
    details = body.get("details", {})
    assert body.get("code", details.get("error_code")) == "permission_denied"
    return str(body["message"])


def test_every_authenticated_route_needs_a_scope() -> None:
    views = [getattr(pattern.callback, "view_class", None) for pattern in urlpatterns]
    authenticated = {view for view in views if view is not None and view.authenticated}
    assert {view.__name__ for view in authenticated if view.scope is None} == FREE
    assert all(issubclass(view, AsyncAPIView) for view in authenticated)


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("post", "/v1/completions", "inference"),
        ("get", "/v1/completions/cmpl-1", "inference"),
        ("post", "/v1/chat/completions", "inference"),
        ("post", "/v1/responses", "inference"),
        ("post", "/v1/responses/input_tokens", "inference"),
        ("post", "/v1/responses/compact", "inference"),
        ("post", "/v1/messages", "inference"),
        ("post", "/v1/messages/count_tokens", "inference"),
        ("post", "/v1/conversations", "inference"),
        ("post", "/v1/tokenize", "inference"),
        ("post", "/v1/grammars/validate", "inference"),
        ("get", "/v1/files", "batches"),
        ("get", "/v1/batches/batch_1", "batches"),
    ],
)
def test_routes_need_their_scope(
    api: Client, owner: Tenant, method: str, path: str, scope: str
) -> None:
    restrict(owner, scopes=[name for name in Scope.values if name != scope])
    assert f"lacks the scope '{scope}'" in refused(getattr(api, method)(path))
    assert api.get("/v1/models").status_code == 200


@pytest.mark.parametrize("asked", [True, "last"])
def test_hidden_states_need_a_permission(api: Client, owner: Tenant, asked: Any) -> None:
    restrict(owner, scopes=["inference"])
    body = {**PROMPT, "return_hidden_states": asked}
    response = api.post("/v1/completions", body, content_type="application/json")
    assert "hidden_states" in refused(response)
    assert response.json()["error"]["param"] == "return_hidden_states"


@pytest.mark.parametrize(
    ("networks", "address", "admitted"),
    [
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.0.0.0/8"], "11.1.2.3", False),
        (["10.0.0.0/8"], "::ffff:10.1.2.3", True),  # IPv4 as a socket for both shows it
        (["10.0.0.0/8", "2001:db8::/32"], "2001:db8::1", True),
        (["192.0.2.7"], "192.0.2.7", True),
        (["192.0.2.7"], "", False),
        (["192.0.2.7"], "unix", False),
        ([], "203.0.113.9", True),
    ],
)
def test_a_key_works_from_its_networks_only(
    api: Client, owner: Tenant, networks: list[str], address: str, admitted: bool
) -> None:
    restrict(owner, allowed_networks=networks)
    response = api.get("/v1/models", REMOTE_ADDR=address)
    if admitted:
        assert response.status_code == 200
    else:
        assert "may not be used from" in refused(response)


def test_a_forwarded_address_is_ignored(api: Client, owner: Tenant) -> None:
    restrict(owner, allowed_networks=["10.0.0.0/8"])
    response = api.get("/v1/models", REMOTE_ADDR="203.0.113.9", HTTP_X_FORWARDED_FOR="10.0.0.1")
    assert "203.0.113.9" in refused(response)


def test_models_lists_what_the_key_may_use(api: Client, owner: Tenant) -> None:
    restrict(owner, allowed_models=["texts", "tiny:polite"])
    listed = {model["id"] for model in api.get("/v1/models").json()["data"]}
    assert listed == {"texts", "tiny:polite"}
    assert api.get("/v1/models/texts").status_code == 200
    assert "may not use the model 'tiny'" in refused(api.get("/v1/models/tiny"))


def test_a_band_of_priorities(api: Client, owner: Tenant) -> None:
    restrict(owner, default_priority=-20, max_priority=-10)
    body = {**PROMPT, "priority": -9}
    response = api.post("/v1/completions", body, content_type="application/json")
    assert "at most -10" in refused(response)


def test_uses_are_noted_once_per_key(api: Client, owner: Tenant, fake_process: FakeProcess) -> None:
    for _ in range(3):
        api.get("/v1/models")
    assert list(fake_process.key_ring.take_used()) == [owner.key.pk]
    assert fake_process.key_ring.take_used() == {}
