"""Users who sign in with a provider: their names, roles, sessions and traces."""

import logging
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from pytest_django.fixtures import Settings

from completions.accounts import operator_groups
from completions.models import AuditEntry
from completions.outgoing import Requests
from completions.sign_in import people, provider

pytest.importorskip("authlib", reason="requirements-oidc.txt is not installed")
from completions.sign_in import transport
from tests.completions.sign_in.conftest import OFF, Visitor
from tests.completions.sign_in.forging_provider import Forging


def roles(user: User) -> set[str]:
    return set(user.groups.values_list("name", flat=True))


def the_user(forging: Forging) -> User:
    return User.objects.get(username=people.make_user_name(forging.url, forging.subject))


def trail() -> list[tuple[str, str, dict[str, object]]]:
    entries = AuditEntry.objects.order_by("id")
    return [(each.action, each.object_name, each.changes) for each in entries]


def test_a_user_of_the_provider_enters_and_leaves(visitor: Visitor, forging: Forging):
    answer = visitor.sign_in("/admin/live/?x=1")
    assert (answer.status_code, answer["Location"]) == (302, "/admin/live/?x=1")
    user = the_user(forging)
    assert (user.is_staff, user.is_superuser, roles(user)) == (True, False, {"Viewer"})
    assert (user.email, user.first_name) == ("ada@example.org", "Ada")
    assert not user.has_usable_password()
    assert visitor.is_in
    ((action, name, changes),) = trail()
    assert (action, name) == ("signed_in", user.username)
    assert changes["roles"] == [[], ["Viewer"]]
    assert changes["address"] == [None, "127.0.0.1"]
    left = visitor.client.post("/admin/logout/")
    assert left["Location"].startswith(f"{forging.url}/end?id_token_hint=")
    assert "post_logout_redirect_uri=http%3A%2F%2Ftestserver%2Fadmin%2Flogin%2F" in left["Location"]
    assert not visitor.is_in


def test_no_connection_to_the_database_waits_for_the_provider(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
):
    events, send = [], Requests.send

    def note(*args: Any) -> Any:
        events.append("asked")
        return send(*args)

    monkeypatch.setattr(Requests, "send", note)
    monkeypatch.setattr(transport, "close_old_connections", lambda: events.append("given back"))
    assert visitor.sign_in().status_code == 302
    assert events == 3 * ["given back", "asked"]  # discovery, token, keys


def test_roles_follow_the_groups_at_every_sign_in(visitor: Visitor, forging: Forging):
    for groups, held, owner in (
        (["readers", "others"], {"Viewer"}, False),
        (["readers", "operators"], {"Viewer", "Operator"}, False),
        ("operators", {"Operator"}, False),
        (["owners"], set(), True),
        (["operators"], {"Operator"}, False),
    ):
        forging.groups = groups
        assert visitor.sign_in().status_code == 302
        assert (roles(the_user(forging)), the_user(forging).is_superuser) == (held, owner)
    assert User.objects.count() == 1


@pytest.mark.represented_by("groups0")
@pytest.mark.parametrize("groups", [["others"], [], None, 7, {"readers": 1}, [["readers"]]])
def test_a_user_without_a_mapped_group_is_refused(
    visitor: Visitor, forging: Forging, groups: object
):
    assert visitor.sign_in().status_code == 302
    forging.groups = groups
    stranger = Visitor()
    answer = stranger.sign_in()
    assert answer.status_code == 403
    shown = answer.content.decode()
    assert "None of your groups has a role here." in shown
    assert "operators, owners, readers" in shown
    assert not stranger.is_in
    user = the_user(forging)
    assert (roles(user), user.is_staff, user.is_superuser) == (set(), False, False)
    assert not visitor.is_in, "an open session lasts until the refusal"
    action, name, changes = trail()[-1]
    assert (action, name) == ("refused", user.username)
    assert changes["roles"] == [["Viewer"], []]


def test_no_account_with_a_password_is_taken_over(visitor: Visitor, forging: Forging):
    owner = User.objects.create_superuser("ada", "ada@example.org", "correct horse")
    assert visitor.sign_in().status_code == 302
    assert User.objects.count() == 2
    assert visitor.client.session["_auth_user_id"] == str(the_user(forging).pk) != str(owner.pk)
    assert not the_user(forging).is_superuser


def test_a_password_does_not_replace_the_provider(visitor: Visitor, forging: Forging):
    """Whoever left the group would keep the role."""
    assert visitor.sign_in().status_code == 302
    user = the_user(forging)
    user.set_password("correct horse")
    user.save()
    assert not Client().login(username=user.username, password="correct horse")


def test_an_equal_subject_of_another_issuer_is_another_user():
    names = {
        people.make_user_name(issuer, "1") for issuer in ("https://a.example", "https://b.example")
    }
    assert len(names) == 2
    long = {people.make_user_name("https://a.example", letter * 255) for letter in "ab"}
    assert len(long) == 2
    assert all(len(name) <= 150 for name in long)


@pytest.mark.parametrize("subject", ["", "a" * 256, "ü", "a\0b", 7, None])
def test_an_unusable_subject_is_refused(visitor: Visitor, forging: Forging, subject: object):
    forging.change = lambda claims: claims.update(sub=subject)
    assert visitor.sign_in().status_code in (400, 403)
    assert not User.objects.exists()


def test_an_account_that_is_switched_off_stays_off(visitor: Visitor, forging: Forging):
    visitor.sign_in()
    User.objects.update(is_active=False)
    answer = visitor.sign_in()
    assert answer.status_code == 403
    assert "switched off" in answer.content.decode()
    assert not the_user(forging).is_active


def test_a_mapped_role_that_does_not_exist_is_refused(visitor: Visitor, settings: Settings):
    settings.OIDC = settings.OIDC | {"ROLES": "readers=Auditor"}
    assert "The role Auditor does not exist here." in visitor.sign_in().content.decode()
    Group.objects.create(name="Auditor")
    assert visitor.sign_in().status_code == 302


def test_groups_that_only_userinfo_has(visitor: Visitor, forging: Forging):
    forging.change = lambda claims: claims.pop("groups")
    forging.userinfo = {"sub": "ada", "groups": ["operators"]}
    assert visitor.sign_in().status_code == 302
    assert roles(the_user(forging)) == {"Operator"}
    forging.userinfo = {"sub": "eve", "groups": ["owners"]}
    assert visitor.sign_in().status_code == 400
    assert roles(the_user(forging)) == {"Operator"}


@pytest.mark.parametrize(("verified", "status"), [(True, 302), (False, 403), ("true", 403)])
def test_an_address_counts_only_if_it_is_verified(
    visitor: Visitor, forging: Forging, settings: Settings, verified: object, status: int
):
    roles_by_address = {"GROUPS_CLAIM": "email", "ROLES": "ada@example.org=superuser"}
    settings.OIDC = settings.OIDC | roles_by_address
    forging.change = lambda claims: claims.update(email_verified=verified)
    assert visitor.sign_in().status_code == status


def test_the_button_is_there_where_a_provider_is(client: Client, served: None, db: None):
    assert "Sign in with" not in client.get("/admin/login/").content.decode()
    assert client.post("/admin/oidc/start/").status_code == 404
    assert client.get("/admin/oidc/callback/").status_code == 404


def test_the_button_keeps_the_page_that_was_asked_for(visitor: Visitor, settings: Settings):
    settings.OIDC = settings.OIDC | {"NAME": "Acme <b>"}
    shown = visitor.client.get("/admin/login/?next=/admin/live/").content.decode()
    assert "Sign in with Acme &lt;b&gt;" in shown
    assert 'name="next" value="/admin/live/"' in shown
    assert 'action="/admin/oidc/start/"' in shown


def test_starting_needs_the_form_of_the_login_page(forging: Forging, served: None, db: None):
    strict = Client(enforce_csrf_checks=True)
    assert strict.post("/admin/oidc/start/").status_code == 403
    assert strict.get("/admin/oidc/start/").status_code == 405


def test_turning_it_off_ends_its_sessions(visitor: Visitor, settings: Settings):
    visitor.sign_in()
    assert visitor.is_in
    settings.AUTHENTICATION_BACKENDS = settings.AUTHENTICATION_BACKENDS[:-1]
    settings.OIDC = OFF
    assert not visitor.is_in


def test_the_admin_edits_a_user_of_the_provider(visitor: Visitor, forging: Forging, admin_client):
    visitor.sign_in()
    user = the_user(forging)
    page = f"/admin/auth/user/{user.pk}/change/"
    assert 'name="username"' not in admin_client.get(page).content.decode()
    form = {"first_name": "Ada", "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    members = {"memberships-TOTAL_FORMS": 0, "memberships-INITIAL_FORMS": 0}
    saved = admin_client.post(page, {**form, **members})
    assert saved.status_code == 302, saved.context["errors"]
    user.refresh_from_db()
    assert not user.is_active


def test_a_dead_provider_leaves_the_password_form(
    visitor: Visitor, settings: Settings, caplog: pytest.LogCaptureFixture
):
    settings.OIDC = settings.OIDC | {"ISSUER": "http://127.0.0.1:9"}
    User.objects.create_superuser("owner", password="correct horse")
    with caplog.at_level(logging.ERROR):
        answer = visitor.start()
    assert answer.status_code == 503
    assert "does not answer as it should" in answer.content.decode()
    assert "http://127.0.0.1:9/.well-known/openid-configuration cannot be read" in caplog.text
    assert visitor.client.login(username="owner", password="correct horse")
    assert visitor.is_in
    assert visitor.client.post("/admin/logout/").status_code == 200


def test_a_failed_discovery_is_not_repeated_at_once(
    visitor: Visitor, forging: Forging, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(provider, "RETRY", 600.0)
    forging.document = {"issuer": "https://other.example"}
    assert [visitor.start().status_code for _ in range(5)] == [503] * 5
    assert len(forging.seen) == 1
    forging.document = {}
    monkeypatch.setattr(provider, "RETRY", 0.0)
    assert visitor.sign_in().status_code == 302
    assert visitor.sign_in().status_code == 302
    assert forging.seen.count("/.well-known/openid-configuration") == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": "https://other.example"},
        {"token_endpoint": "http://elsewhere.example/token"},
        {"jwks_uri": None},
        {"id_token_signing_alg_values_supported": ["none", "HS256"]},
        {"id_token_signing_alg_values_supported": None},
        {"id_token_signing_alg_values_supported": 7},
        {"token_endpoint_auth_methods_supported": 7},
    ],
)
def test_a_discovery_document_that_makes_no_sense(
    visitor: Visitor, forging: Forging, wrong: dict[str, object]
):
    forging.document = wrong
    assert [visitor.start().status_code for _ in range(2)] == [503, 503]


def test_a_missing_file_of_certificates_is_logged(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(transport, "read", Mock(side_effect=OSError("no CA certificates")))
    assert [visitor.start().status_code for _ in range(2)] == [503, 503]
    assert "no CA certificates" in caplog.text


def test_unfinished_sign_ins_do_not_fill_the_session(visitor: Visitor):
    for _ in range(20):
        visitor.start()
    states = [key for key in dict(visitor.client.session.items()) if key.startswith("_state_")]
    assert len(states) == provider.STARTED


def test_an_unfinished_sign_in_leaves_a_session_of_an_hour(visitor: Visitor, settings: Settings):
    """Anyone can start one, and each is a row until it expires."""
    User.objects.create_superuser("owner", password="correct horse")
    visitor.start()
    assert visitor.client.session.get_expiry_age() == provider.STARTED_FOR
    form = {"username": "owner", "password": "correct horse"}
    assert visitor.client.post("/admin/login/", form).status_code == 302
    whole = pytest.approx(settings.SESSION_COOKIE_AGE, abs=600)
    assert visitor.client.session.get_expiry_age() == whole
    other = Visitor()
    assert other.sign_in().status_code == 302
    assert other.client.session.get_expiry_age() == whole


@pytest.mark.parametrize("provided", [True, False])
def test_no_request_prolongs_a_session(visitor: Visitor, provided: bool):
    """Until it ends, nobody asks the provider whether its user may still enter."""
    User.objects.create_superuser("owner", password="correct horse")
    form = {"username": "owner", "password": "correct horse"}
    entered = visitor.sign_in() if provided else visitor.client.post("/admin/login/", form)
    assert entered.status_code == 302
    ends = visitor.client.session.get_expiry_date()
    visitor.start()
    visitor.client.get("/admin/login/")
    visitor.client.post("/admin/login/", {**form, "password": "wrong"})
    assert visitor.is_in
    assert visitor.client.session.get_expiry_date() == ends


def test_roles_named_here_exist(db: None):
    operator_groups.ensure()
    assert {"Viewer", "Operator"} <= set(Group.objects.values_list("name", flat=True))
