"""What members and an organization's admin do in the admin, and what an operator sets."""

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from completions.accounts import changes, members
from completions.accounts.audit import SERVICE, Actor
from completions.models import ApiKey, AuditEntry, MemberRole, Membership, Organization
from tests.completions.admin.members import join, sign_in
from tests.completions.conftest import Tenant

KEYS = "/admin/completions/apikey/"
MEMBERS = "/admin/completions/membership/"
NEW = {"name": "mine", "scopes": ["inference"]}
pytestmark = pytest.mark.usefixtures("served", "announced")


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "announce_change", lambda: None)


@pytest.fixture
def ada(owner: Tenant) -> User:
    return join(owner.organization, "ada")


@pytest.fixture
def member(ada: User) -> Client:
    return sign_in(ada)


def make_key(client: Client, organization: Organization, **fields: object) -> str:
    response = client.post(f"{KEYS}add/", {**NEW, "organization": organization.pk, **fields})
    assert response.status_code == 200
    return response.content.decode()


def test_a_member_makes_rotates_and_revokes_an_own_key(
    member: Client, ada: User, owner: Tenant
) -> None:
    page = make_key(member, owner.organization)
    assert len(re.findall(r'value="(sk-[^"]+)"', page)) == 1
    key = ApiKey.objects.get(name="mine")
    assert key.owner == ada
    assert "sk-" in member.post(f"/admin/keys/{key.pk}/rotate/", {"grace": "0"}).content.decode()
    member.post(f"/admin/keys/{key.pk}/revoke/")
    key.refresh_from_db()
    assert key.revoked_at is not None
    did = AuditEntry.objects.filter(user=ada).order_by("id").values_list("action", flat=True)
    assert list(did) == ["created", "rotated", "revoked"]


def test_a_members_key_takes_the_limits_that_the_operator_set(
    member: Client, owner: Tenant
) -> None:
    Organization.objects.filter(pk=owner.organization.pk).update(
        member_requests_per_minute=7, member_daily_token_budget=1000
    )
    raised = {"requests_per_minute": 9999, "max_priority": 100, "role": "admin"}
    make_key(member, owner.organization, **raised)
    key = ApiKey.objects.get(name="mine")
    assert (key.requests_per_minute, key.daily_token_budget) == (7, 1000)
    assert (key.max_priority, key.role) == (0, "member")


def test_a_member_makes_no_more_keys_than_the_operator_allows(
    member: Client, owner: Tenant
) -> None:
    Organization.objects.filter(pk=owner.organization.pk).update(keys_per_member=1)
    make_key(member, owner.organization)
    assert "lets each member own 1 active" in make_key(member, owner.organization, name="another")
    assert not ApiKey.objects.filter(name="another").exists()


@pytest.mark.wide
def test_keys_made_at_once_are_counted_one_after_another(
    run_apart: Callable[..., list[str]],
) -> None:
    assert run_apart("keys_together", "admin") == ["1"]


def test_a_member_makes_no_key_for_another_organization(member: Client, stranger: Tenant) -> None:
    page = make_key(member, stranger.organization)
    assert "Select a valid choice" in page
    assert not ApiKey.objects.filter(name="mine").exists()


def test_a_member_looks_at_a_colleagues_key_and_does_not_act(member: Client, owner: Tenant) -> None:
    path = f"{KEYS}{owner.key.pk}/change/"
    page = member.get(path)
    assert page.status_code == 200
    assert "Rotate secret" not in page.content.decode()
    assert member.post(path, {"name": "taken"}).status_code == 403
    assert member.post(f"/admin/keys/{owner.key.pk}/revoke/").status_code == 404
    assert f'value="{owner.key.pk}"' not in member.get("/admin/playground/").content.decode()


def test_a_search_forgets_what_a_user_no_longer_sees(
    member: Client, ada: User, owner: Tenant, stranger: Tenant
) -> None:
    def search() -> str:
        return member.get("/admin/search/", {"s": "key", "extended": "1"}).content.decode()

    assert "owner&#x27;s key" in search()
    members.remove(ada.memberships.get(), SERVICE)
    join(stranger.organization, "ada")
    assert "owner&#x27;s key" not in search()
    assert "stranger&#x27;s key" in search()


def test_an_admin_manages_keys_and_members(owner: Tenant) -> None:
    admin = sign_in(join(owner.organization, "grace", MemberRole.ADMIN))
    User.objects.create_user("bob", email="bob@example.org")
    form = {"who": "Bob@example.org", "organization": owner.organization.pk, "role": "member"}
    assert admin.post(f"{MEMBERS}add/", form).status_code == 302
    bob = Membership.objects.get(user__username="bob")
    assert bob.user.is_staff
    assert "member already" in admin.post(f"{MEMBERS}add/", form).content.decode()
    admin.post(f"{MEMBERS}{bob.pk}/change/", {"role": "admin"})
    bob.refresh_from_db()
    assert bob.role == MemberRole.ADMIN
    key, _ = changes.create(owner.organization, "bobs", SERVICE, owner=bob.user)
    admin.post(f"/admin/keys/{owner.key.pk}/revoke/")
    admin.post(f"{MEMBERS}{bob.pk}/delete/", {"post": "yes"})
    assert not Membership.objects.filter(user__username="bob").exists()
    revoked = ApiKey.objects.exclude(revoked_at=None).values_list("name", flat=True)
    assert set(revoked) == {owner.key.name, key.name}
    changed = [list(each.changes) for each in AuditEntry.objects.filter(action="changed")]
    assert changed.count(["member bob"]) == 3


def test_an_admin_adds_nobody_elsewhere_and_no_unknown_user(
    owner: Tenant, stranger: Tenant
) -> None:
    admin = sign_in(join(owner.organization, "grace", MemberRole.ADMIN))
    join(stranger.organization, "grace")
    User.objects.create_user("bob")
    form = {"who": "bob", "role": "admin", "organization": stranger.organization.pk}
    page = admin.post(f"{MEMBERS}add/", form)
    assert page.status_code == 200
    mallory = join(stranger.organization, "mallory").memberships.get()
    assert admin.post(f"{MEMBERS}{mallory.pk}/change/", {"role": "admin"}).status_code == 302
    mallory.refresh_from_db()
    assert mallory.role == MemberRole.MEMBER
    form = {"who": "nobody", "role": "member", "organization": owner.organization.pk}
    assert "no single account" in admin.post(f"{MEMBERS}add/", form).content.decode()
    assert not Membership.objects.filter(user__username__in=["bob", "nobody"]).exists()


def test_an_operator_adds_members_on_the_organizations_page(admin: Client, owner: Tenant) -> None:
    bob = User.objects.create_user("bob")
    form = {
        "name": owner.organization.name,
        "keys_per_member": 5,
        "memberships-TOTAL_FORMS": 1,
        "memberships-INITIAL_FORMS": 0,
        "memberships-0-user": bob.pk,
        "memberships-0-organization": owner.organization.pk,
        "memberships-0-role": "admin",
    }
    path = f"/admin/completions/organization/{owner.organization.pk}/change/"
    assert 'name="memberships-TOTAL_FORMS"' in admin.get(path).content.decode()
    assert admin.post(path, form).status_code == 302
    bob.refresh_from_db()
    assert bob.is_staff
    assert bob.memberships.get().role == MemberRole.ADMIN


def test_a_role_makes_an_operator_whom_no_membership_confines(
    in_role, owner: Tenant, stranger: Tenant
) -> None:
    viewer = in_role("Viewer")
    join(owner.organization, "Viewer", MemberRole.ADMIN)
    assert stranger.key.name in viewer.get(f"{KEYS}").content.decode().replace("&#x27;", "'")
    assert viewer.post(f"/admin/keys/{owner.key.pk}/revoke/").status_code == 403


def test_the_start_page_of_a_member_is_their_usage(member: Client) -> None:
    assert member.get("/admin/").headers["Location"] == "/admin/usage/"
    page = member.get("/admin/usage/").content.decode()
    assert "/admin/playground/" in page
    assert "/admin/workers/" not in page


def test_who_leaves_sees_nothing_and_their_keys_are_revoked(
    member: Client, ada: User, owner: Tenant
) -> None:
    make_key(member, owner.organization)
    members.remove(ada.memberships.get(), Actor.from_shell())
    assert member.get(KEYS).status_code == 403
    assert ApiKey.objects.get(name="mine").revoked_at is not None


def test_a_deleted_users_keys_are_revoked(admin: Client, ada: User, owner: Tenant) -> None:
    make_key(sign_in(ada), owner.organization)
    admin.post(f"/admin/auth/user/{ada.pk}/delete/", {"post": "yes"})
    assert not User.objects.filter(username="ada").exists()
    assert ApiKey.objects.get(name="mine").revoked_at is not None
