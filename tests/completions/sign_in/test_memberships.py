"""Groups of the provider that are places in organizations."""

from typing import TYPE_CHECKING

import pytest
from django.contrib.auth.models import User
from pytest_django.fixtures import Settings

from completions.accounts import changes, members
from completions.accounts.audit import SERVICE
from completions.models import ApiKey, MemberRole, Membership, Organization
from tests.completions.sign_in.conftest import Visitor

if TYPE_CHECKING:
    from tests.completions.sign_in.forging_provider import Forging

PLACES = "lab=member:Research,leads=admin:Research,lab=member:Teaching,readers=Viewer"


@pytest.fixture
def research(visitor: Visitor, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Organization:
    monkeypatch.setattr(changes, "announce_change", lambda: None)
    settings.OIDC = {**settings.OIDC, "ROLES": PLACES}
    Organization.objects.create(name="Teaching")
    return Organization.objects.create(name="Research")


def list_places() -> dict[str, str]:
    return dict(Membership.objects.values_list("organization__name", "role"))


def test_memberships_follow_the_groups_at_every_sign_in(
    visitor: Visitor, forging: "Forging", research: Organization
) -> None:
    for groups, places in (
        (["lab"], {"Research": "member", "Teaching": "member"}),
        (["lab", "leads"], {"Research": "admin", "Teaching": "member"}),
        (["leads"], {"Research": "admin"}),
    ):
        forging.groups = groups
        assert visitor.sign_in().status_code == 302
        assert list_places() == places
    assert visitor.client.get("/admin/completions/membership/").status_code == 200
    assert visitor.client.get("/admin/auth/user/").status_code == 403


def test_who_loses_the_group_loses_the_membership_and_its_keys(
    visitor: Visitor, forging: "Forging", research: Organization
) -> None:
    forging.groups = ["lab"]
    visitor.sign_in()
    key, _ = changes.create(research, "mine", SERVICE, owner=User.objects.get())
    forging.groups = ["others"]
    assert Visitor().sign_in().status_code == 403
    assert list_places() == {}
    assert not visitor.is_in
    assert ApiKey.objects.get(pk=key.pk).revoked_at is not None


def test_a_membership_given_here_stays_and_admits(
    visitor: Visitor, forging: "Forging", research: Organization
) -> None:
    forging.groups = ["lab"]
    visitor.sign_in()
    own = Organization.objects.create(name="Own")
    given = Membership(organization=own, user=User.objects.get(), role=MemberRole.ADMIN)
    members.save(given, SERVICE)
    forging.groups = ["others"]
    assert visitor.sign_in().status_code == 302
    assert list_places() == {"Own": "admin"}


def test_a_missing_organization_refuses_and_revokes_nothing(
    visitor: Visitor, forging: "Forging", research: Organization
) -> None:
    forging.groups = ["leads"]
    visitor.sign_in()
    key, _ = changes.create(research, "mine", SERVICE, owner=User.objects.get())
    Organization.objects.filter(pk=research.pk).update(name="Renamed")
    answer = Visitor().sign_in()
    assert answer.status_code == 403
    assert "The organization Research does not exist here." in answer.content.decode()
    assert ApiKey.objects.get(pk=key.pk).revoked_at is None
