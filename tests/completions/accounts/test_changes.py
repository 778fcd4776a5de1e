"""Organizations and keys: every change leaves an entry, and no entry a secret."""

from datetime import timedelta

from asgiref.sync import async_to_sync
from django.utils import timezone

from completions.accounts import changes
from completions.accounts.audit import SERVICE, Actor
from completions.accounts.keys import KeyRing, Principal, Refusal
from completions.models import ApiKey, AuditEntry, Organization
from tests.completions.conftest import Tenant

ROOT = Actor("admin:root")


def verify(secret: str, **ring: object) -> Principal | Refusal:
    return async_to_sync(KeyRing(**ring).verify)(secret)  # type: ignore[arg-type]


def test_a_rotated_key_has_two_secrets_for_a_while(owner: Tenant) -> None:
    secret = changes.rotate(owner.key, timedelta(hours=1), ROOT)
    old, new = verify(owner.secret), verify(secret)
    assert isinstance(old, Principal)
    assert isinstance(new, Principal)
    assert (old.key_id, old.limits) == (new.key_id, new.limits)
    assert old.public_id == owner.key.public_id != new.public_id
    later = timezone.now() + timedelta(hours=1)
    assert verify(owner.secret, now=lambda: later) is Refusal.EXPIRED
    assert isinstance(verify(secret, now=lambda: later), Principal)


def test_a_second_rotation_ends_the_first_secret(owner: Tenant) -> None:
    second = changes.rotate(owner.key, timedelta(hours=1), ROOT)
    third = changes.rotate(owner.key, timedelta(hours=1), ROOT)
    assert verify(owner.secret) is Refusal.INVALID
    assert isinstance(verify(second), Principal)
    assert isinstance(verify(third), Principal)


def test_revoking_ends_both_secrets(owner: Tenant) -> None:
    secret = changes.rotate(owner.key, timedelta(hours=1), ROOT)
    changes.revoke(owner.key, ROOT)
    assert verify(owner.secret) is verify(secret) is Refusal.REVOKED


def test_keys_of_a_suspended_organization_rest(owner: Tenant, stranger: Tenant) -> None:
    owner.organization.suspended_at = timezone.now()
    changes.change(owner.organization, ["suspended_at"], ROOT)
    assert verify(owner.secret) is Refusal.REVOKED
    assert isinstance(verify(stranger.secret), Principal)


def test_entries_say_what_was_and_what_is(owner: Tenant) -> None:
    owner.key.requests_per_minute = 5
    changes.change(owner.key, ["requests_per_minute", "name"], ROOT)
    changes.change(owner.key, ["requests_per_minute"], ROOT)  # nothing changed, nothing to tell
    entry = AuditEntry.objects.get(action="changed")
    assert entry.changes == {"requests_per_minute": [None, 5]}
    assert (entry.actor, entry.object_type, entry.object_id) == (
        "admin:root", "api_key", owner.key.pk,
    )  # fmt: skip
    assert entry.organization == owner.organization


def test_entries_hold_no_digest(owner: Tenant) -> None:
    changes.rotate(owner.key, timedelta(hours=1), ROOT)
    changes.revoke(owner.key, ROOT)
    key = ApiKey.objects.get(pk=owner.key.pk)
    entries = list(AuditEntry.objects.values())
    assert {entry["action"] for entry in entries} >= {"created", "rotated", "revoked"}
    assert key.public_id in str(entries)
    assert key.digest not in str(entries)
    assert str(key.previous_digest) not in str(entries)


def test_the_trail_outlives_what_it_speaks_of(owner: Tenant) -> None:
    changes.delete(owner.organization, ROOT)
    assert not ApiKey.objects.exists()
    entry = AuditEntry.objects.get(action="deleted")
    assert (entry.object_name, entry.organization) == ("owner", None)


def test_organizations_are_made_once(db: None) -> None:
    first = changes.find_organization("acme", SERVICE)
    assert changes.find_organization("acme", SERVICE) == first
    assert Organization.objects.count() == 1
    assert AuditEntry.objects.get().action == "created"
