"""Keys in the admin: the secret is shown once, changes reach the web processes."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoCaptureOnCommitCallbacks

from completions.accounts import audit, changes, keys
from completions.admin.keys import ApiKeyAdmin
from completions.models import ApiKey, Organization, Scope, UsageHour
from tests.completions.conftest import Tenant

POLICY = {"default_priority": 0, "role": "member", "scopes": ["inference"]}
KEYS = "/admin/completions/apikey/"


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    monkeypatch.setattr(changes, "announce_change", lambda: calls.append(1))
    return calls


def add_key(admin: Client, **fields: object) -> str:
    organization = Organization.objects.create(name="acme")
    form = {"organization": organization.pk, "name": "ci", "max_priority": 5, **POLICY, **fields}
    response = admin.post(f"{KEYS}add/", form)
    assert response.status_code == 200
    assert "no-store" in response.headers["Cache-Control"]
    secrets = re.findall(r'value="(sk-[^"]+)"', response.content.decode())
    assert len(secrets) == 1
    return str(secrets[0])


def test_a_created_key_is_shown_once(admin: Client) -> None:
    secret = add_key(admin, allowed_models=["tiny"])
    key = ApiKey.objects.get()
    assert key.digest == keys.digest(secret, _pepper())
    assert key.allowed_models == ["tiny"]
    change = f"{KEYS}{key.pk}/change/"
    for path in (KEYS, change, f"{KEYS}{key.pk}/history/", "/admin/"):
        page = admin.get(path).content.decode()
        assert secret not in page
        assert key.digest not in page
    assert f"sk-{key.public_id}" in admin.get(KEYS).content.decode()


def test_a_second_key_of_a_name_is_warned_of(admin: Client, owner: Tenant) -> None:
    form = {"organization": owner.organization.pk, "name": owner.key.name, "max_priority": 5}
    page = admin.post(f"{KEYS}add/", {**form, **POLICY}, follow=True).content.decode()
    assert "already has an active key named owner&#x27;s key" in page
    assert ApiKey.objects.filter(name=owner.key.name).count() == 2


def _pepper() -> str:
    from django.conf import settings

    return str(settings.KEY_PEPPER)


def test_the_secret_is_kept_nowhere(admin: Client, caplog: pytest.LogCaptureFixture) -> None:
    secret = add_key(admin)
    stored = [*LogEntry.objects.values(), *ApiKey.objects.values()]
    stored += [session.get_decoded() for session in Session.objects.all()]
    assert stored
    assert secret not in str(stored)
    assert secret not in caplog.text
    assert secret not in str(admin.cookies)


def test_a_new_key_is_offered_every_scope(admin: Client) -> None:
    page = admin.get(f"{KEYS}add/").content.decode()
    boxes = re.findall(r'<input[^>]*name="scopes"[^>]*>', page)
    assert len(boxes) == len(Scope.values)
    assert all("checked" in box for box in boxes)


def test_unserved_models_cannot_be_chosen(admin: Client) -> None:
    organization = Organization.objects.create(name="acme")
    form = {"organization": organization.pk, "name": "ci", "allowed_models": ["none"]}
    response = admin.post(f"{KEYS}add/", form)
    assert "none is not one of the available choices" in response.content.decode()
    assert not ApiKey.objects.exists()


def test_editing_a_key_is_announced(
    admin: Client,
    owner: Tenant,
    announced: list[int],
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    ApiKey.objects.filter(pk=owner.key.pk).update(allowed_models=["gone"])
    page = admin.get(f"{KEYS}{owner.key.pk}/change/").content.decode()
    assert "gone (no longer served)" in page
    form = {
        "name": "renamed",
        "allowed_models": ["tiny"],
        "organization": "999",
        "digest": "x",
        "max_priority": 0,
        **POLICY,
    }
    with django_capture_on_commit_callbacks(execute=True):
        response = admin.post(f"{KEYS}{owner.key.pk}/change/", form)
    assert response.status_code == 302
    key = ApiKey.objects.get(pk=owner.key.pk)
    assert (key.name, key.allowed_models) == ("renamed", ["tiny"])
    assert (key.organization, key.digest) == (owner.organization, owner.key.digest)
    assert announced == [1]


def test_revoking_keys(
    admin: Client,
    owner: Tenant,
    stranger: Tenant,
    announced: list[int],
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    form = {"action": "revoke_selected", "_selected_action": [owner.key.pk]}
    with django_capture_on_commit_callbacks(execute=True):
        response = admin.post(KEYS, form, follow=True)
    assert "Keys revoked: 1." in response.content.decode()
    assert [key.organization.name for key in ApiKey.objects.active()] == ["stranger"]
    assert announced == [1]


def test_keys_are_not_deleted(admin: Client, owner: Tenant) -> None:
    assert admin.get(f"{KEYS}{owner.key.pk}/delete/").status_code == 403
    page = admin.get(f"/admin/completions/organization/{owner.organization.pk}/delete/")
    assert "API keys that are not revoked: 1" in page.content.decode()
    admin.post(f"/admin/completions/organization/{owner.organization.pk}/delete/", {"post": "yes"})
    assert ApiKey.objects.filter(pk=owner.key.pk).exists()


def test_rotating_shows_the_new_secret_once_and_keeps_the_old_for_its_grace(
    admin: Client, owner: Tenant
) -> None:
    response = admin.post(f"/admin/keys/{owner.key.pk}/rotate/", {"grace": "24"})
    assert "no-store" in response.headers["Cache-Control"]
    (secret,) = re.findall(r'value="(sk-[^"]+)"', response.content.decode())
    key = ApiKey.objects.get(pk=owner.key.pk)
    assert key.digest == keys.digest(secret, _pepper())
    assert key.previous_digest == owner.key.digest
    assert key.previous_expires_at is not None
    page = admin.get(f"{KEYS}{key.pk}/change/").content.decode()
    assert "The previous secret stops working in 23 h" in page
    assert secret not in page


@pytest.mark.parametrize("form", ["sk-{id}", "{id}", "{secret}", "sk-{id}-"])
@pytest.mark.parametrize("age", ["current", "previous"])
def test_a_search_finds_a_key_by_either_secret(
    admin: Client, owner: Tenant, stranger: Tenant, form: str, age: str
) -> None:
    new = changes.rotate(owner.key, timedelta(hours=1), audit.SERVICE)
    secret = new if age == "current" else owner.secret
    term = form.format(id=secret[3:9], secret=secret)
    for path, name, extended in ((KEYS, "q", {}), ("/admin/search/", "s", {"extended": "1"})):
        page = admin.get(path, {name: term, **extended}).content.decode()
        assert f"/apikey/{owner.key.pk}/change/" in page
        assert f"/apikey/{stranger.key.pk}/change/" not in page


def test_the_beginning_of_every_secret_names_no_key(admin: Client, owner: Tenant) -> None:
    page = admin.get("/admin/search/", {"s": "sk-", "extended": "1"}).content.decode()
    assert f"/apikey/{owner.key.pk}/change/" not in page


@pytest.mark.parametrize("grace", ["", "5", "-1", "x"])
def test_a_grace_that_was_not_offered_changes_nothing(
    admin: Client, owner: Tenant, grace: str
) -> None:
    response = admin.post(f"/admin/keys/{owner.key.pk}/rotate/", {"grace": grace}, follow=True)
    assert "Nothing was changed" in response.content.decode()
    assert ApiKey.objects.get(pk=owner.key.pk).digest == owner.key.digest


def test_a_key_is_revoked_from_its_page(admin: Client, owner: Tenant) -> None:
    response = admin.post(f"/admin/keys/{owner.key.pk}/revoke/", follow=True)
    page = response.content.decode()
    assert "is revoked" in page
    assert "Rotate secret" not in page
    assert ApiKey.objects.get(pk=owner.key.pk).revoked_at is not None


def test_the_list_says_when_a_key_ends(admin: Client, owner: Tenant, stranger: Tenant) -> None:
    in_three_days = timezone.now() + timedelta(days=3, hours=1)
    ApiKey.objects.filter(pk=owner.key.pk).update(expires_at=in_three_days)
    Organization.objects.filter(name="stranger").update(suspended_at=timezone.now())
    page = admin.get(KEYS).content.decode()
    assert "expires in 3 d" in page
    assert "suspended" in page


def test_a_clone_has_the_policy_and_a_secret_of_its_own(admin: Client, owner: Tenant) -> None:
    ApiKey.objects.filter(pk=owner.key.pk).update(
        name="x" * 98,
        role="admin",
        scopes=["batches"],
        allowed_models=["tiny"],
        allowed_networks=["10.0.0.0/8"],
        requests_per_minute=60,
        max_priority=7,
        daily_cost_budget=5,
        max_enqueued_tokens=900,
    )
    page = admin.get(f"{KEYS}{owner.key.pk}/change/").content.decode()
    assert f"{KEYS}add/?like={owner.key.pk}" in page
    asked = admin.get(f"{KEYS}add/?like={owner.key.pk}")
    form = asked.context["adminform"].form
    values = {name: form[name].value() for name in form.fields}
    filled = {name: value for name, value in values.items() if value is not None}
    secret = admin.post(f"{KEYS}add/?like={owner.key.pk}", filled).context["secret"]
    copy = ApiKey.objects.exclude(pk=owner.key.pk).get()
    assert copy.digest == keys.digest(secret, _pepper())
    assert (copy.organization, len(copy.name)) == (owner.organization, 100)
    key = ApiKey.objects.get(pk=owner.key.pk)
    for _, names in ApiKeyAdmin.groups:
        for name in names:
            assert getattr(copy, name) == getattr(key, name), name


@pytest.mark.parametrize("like", ["", "x", "999", "9" * 5000])
def test_cloning_an_unknown_key_shows_an_empty_form(
    admin: Client, owner: Tenant, like: str
) -> None:
    form = admin.get(f"{KEYS}add/?like={like}").context["adminform"].form
    assert not form["name"].value()


def test_networks_are_entered_one_per_line(admin: Client, owner: Tenant) -> None:
    form = {
        "name": "n",
        "role": "member",
        "default_priority": 0,
        "max_priority": 0,
        "allowed_networks": "10.0.0.0/8\r\n\r\n 192.0.2.7 ",
    }
    change = f"{KEYS}{owner.key.pk}/change/"
    assert admin.post(change, form).status_code == 302
    key = ApiKey.objects.get(pk=owner.key.pk)
    assert key.allowed_networks == ["10.0.0.0/8", "192.0.2.7"]
    assert "10.0.0.0/8\n192.0.2.7" in admin.get(change).content.decode()
    refused = admin.post(change, {**form, "allowed_networks": "nowhere"})
    assert "is not an address or a network" in refused.content.decode()


def test_the_list_shows_use_and_limits(admin: Client, owner: Tenant) -> None:
    ApiKey.objects.filter(pk=owner.key.pk).update(requests_per_minute=60, daily_cost_budget=5)
    UsageHour.objects.create(
        organization=owner.organization,
        api_key=owner.key,
        model="tiny",
        hour=timezone.now(),
        prompt_tokens=12_000,
        completion_tokens=345,
    )
    page = admin.get(KEYS).content.decode()
    assert "12,345 tokens in 30 days" in page
    assert "60 req/min, cost 5.00/day" in page
    assert "12.3k" in admin.get(f"{KEYS}{owner.key.pk}/change/").content.decode()


def test_usage_of_a_clock_that_is_ahead_does_no_harm(admin: Client, owner: Tenant) -> None:
    """Hours are counted by Redis's clock, and the page asks this machine's."""
    UsageHour.objects.create(
        organization=owner.organization,
        api_key=owner.key,
        model="tiny",
        hour=timezone.now() + timedelta(days=1),
        prompt_tokens=5,
    )
    for path in (KEYS, f"{KEYS}{owner.key.pk}/change/", "/admin/?period=30d"):
        assert admin.get(path).status_code == 200
