"""Organizations in the admin: suspended and resumed by a switch."""

from django.test import Client

from completions.models import AuditEntry
from tests.completions.conftest import Tenant


def test_a_switch_suspends_and_resumes(admin: Client, owner: Tenant) -> None:
    path = f"/admin/completions/organization/{owner.organization.pk}/change/"
    fields = {"name": "owner"}
    for form, is_suspended in (({**fields, "suspended": "on"}, True), (fields, False)):
        assert admin.post(path, form).status_code == 302
        owner.organization.refresh_from_db()
        assert (owner.organization.suspended_at is not None) is is_suspended
        assert "suspended_at" in AuditEntry.objects.first().changes  # type: ignore[union-attr]
        page = admin.get(path).content.decode()
        assert ('name="suspended"' in page, "suspended_at" in page) == (True, False)


def test_another_change_keeps_the_time_of_a_suspension(admin: Client, owner: Tenant) -> None:
    path = f"/admin/completions/organization/{owner.organization.pk}/change/"
    admin.post(path, {"name": "owner", "suspended": "on"})
    owner.organization.refresh_from_db()
    since = owner.organization.suspended_at
    admin.post(path, {"name": "renamed", "suspended": "on"})
    owner.organization.refresh_from_db()
    assert (owner.organization.name, owner.organization.suspended_at) == ("renamed", since)
