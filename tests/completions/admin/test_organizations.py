"""Organizations in the admin: suspended by a switch, deleted unless work stands against it; users
and their roles."""

from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from completions.accounts import operator_groups
from completions.models import (
    ApiKey,
    AuditEntry,
    Batch,
    Organization,
    WebhookDelivery,
    WebhookEndpoint,
)
from tests.completions.conftest import Tenant
from tests.completions.endpoints.test_strangers import made_batch, made_file

UNCHANGED = {"keys_per_member": 5, "memberships-TOTAL_FORMS": 0, "memberships-INITIAL_FORMS": 0}
"""The rest of the form of an organization or a user."""


def test_a_switch_suspends_and_resumes(admin: Client, owner: Tenant) -> None:
    path = f"/admin/completions/organization/{owner.organization.pk}/change/"
    fields = {**UNCHANGED, "name": "owner"}
    for form, is_suspended in (({**fields, "suspended": "on"}, True), (fields, False)):
        assert admin.post(path, form).status_code == 302
        owner.organization.refresh_from_db()
        assert (owner.organization.suspended_at is not None) is is_suspended
        assert "suspended_at" in AuditEntry.objects.first().changes  # type: ignore[union-attr]
        page = admin.get(path).content.decode()
        assert ('name="suspended"' in page, "suspended_at" in page) == (True, False)


def test_another_change_keeps_the_time_of_a_suspension(admin: Client, owner: Tenant) -> None:
    path = f"/admin/completions/organization/{owner.organization.pk}/change/"
    admin.post(path, {**UNCHANGED, "name": "owner", "suspended": "on"})
    owner.organization.refresh_from_db()
    since = owner.organization.suspended_at
    admin.post(path, {**UNCHANGED, "name": "renamed", "suspended": "on"})
    owner.organization.refresh_from_db()
    assert (owner.organization.name, owner.organization.suspended_at) == ("renamed", since)


def test_an_organization_goes_with_all_it_owns_once_its_batches_have_ended(
    admin: Client, owner: Tenant
) -> None:
    endpoint = WebhookEndpoint.objects.create(
        organization=owner.organization, url="https://a.example/"
    )
    WebhookDelivery.objects.create(endpoint=endpoint, type="batch.completed", subject="batch_1")
    made_batch(owner, made_file(owner))
    path = f"/admin/completions/organization/{owner.organization.pk}/delete/"
    page = admin.get(path).content.decode()
    assert "Batches that have not ended: 1. Cancel them" in page
    assert "permission" not in page
    assert admin.post(path, {"post": "yes"}).status_code == 200
    assert Organization.objects.filter(pk=owner.organization.pk).exists()
    Batch.objects.update(ended_at=timezone.now())
    assert "API keys that are not revoked: 1. Revoke them." in admin.get(path).content.decode()
    ApiKey.objects.update(revoked_at=timezone.now())
    page = admin.get(path).content.decode()
    assert ("have not ended" in page, "not revoked" in page) == (False, False)
    assert admin.post(path, {"post": "yes"}).status_code == 302
    assert not Organization.objects.filter(pk=owner.organization.pk).exists()


def test_a_role_is_enough_to_sign_in(admin: Client) -> None:
    operator_groups.ensure()
    group = Group.objects.get(name=operator_groups.VIEWER)
    user = User.objects.create_user("ada", password="correct horse")
    path = f"/admin/auth/user/{user.pk}/change/"
    assert "has a role" in admin.post(path, form_of(user, group), follow=True).content.decode()
    client = Client()
    assert client.login(username="ada", password="correct horse")
    assert client.get("/admin/").status_code == 200
    admin.post(path, form_of(user, group))  # staff is off, and the roles are as before
    assert client.get("/admin/").status_code == 302


def form_of(user: User, group: Group) -> dict[str, object]:
    joined = user.date_joined
    return {
        **UNCHANGED, "username": user.username, "is_active": "on", "groups": [group.pk],
        "date_joined_0": f"{joined:%Y-%m-%d}", "date_joined_1": f"{joined:%H:%M:%S}",
    }  # fmt: skip
