"""Adds, changes and removes members of organizations. Every change is audited."""

from collections.abc import Iterable, Mapping

from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ValidationError
from django.db import transaction

from completions.accounts import audit, changes
from completions.accounts.audit import Actor
from completions.models import ApiKey, AuditAction, Membership, Organization
from completions.models.organizations import MEMBER_LIMITS, MEMBER_PREFIX


def save(member: Membership, actor: Actor) -> None:
    """Store a new member or another role, and let the user sign in."""
    with transaction.atomic():
        stored = Membership.objects.filter(pk=member.pk).first()
        member.save()
        if not member.user.is_staff:
            member.user.is_staff = True
            member.user.save(update_fields=["is_staff"])
        was = stored.role if stored else None
        if was != member.role:
            _record(member, [was, member.role], actor)


def remove(member: Membership, actor: Actor) -> None:
    """Remove a member, and revoke their keys: they know the secrets."""
    with transaction.atomic():
        keys = ApiKey.objects.filter(organization=member.organization, owner=member.user)
        for key in keys.filter(revoked_at=None):
            changes.revoke(key, actor)
        _record(member, [member.role, None], actor)
        member.delete()


def follow_provider(user: User, roles: Mapping[Organization, str], actor: Actor) -> None:
    """Give the user the memberships that their groups have, in place of those of an earlier
    sign-in. Memberships that somebody gave here stay."""
    rows = Membership.objects.filter(user=user).select_related("organization")
    held = {row.organization_id: row for row in rows}
    for organization, role in roles.items():
        member = held.pop(organization.pk, None)
        if member is None:
            member = Membership(organization=organization, user=user, by_provider=True)
        if member.by_provider:
            member.role = role
            save(member, actor)
    for member in held.values():
        if member.by_provider:
            remove(member, actor)


def remove_user(users: Iterable[User], actor: Actor) -> None:
    """Remove users from all of their organizations."""
    for member in Membership.objects.filter(user__in=users).select_related("organization", "user"):
        remove(member, actor)


def require_room(organization: Organization, owner: User) -> None:
    """Raise ValidationError for a member who owns as many active keys as the organization allows.

    Runs in the caller's transaction, which then makes the key: others that make one wait for its
    end.
    """
    locked = Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
    owned = ApiKey.objects.active().filter(organization=locked, owner=owner)
    if owned.count() >= locked.keys_per_member:
        raise ValidationError(
            f"{locked} lets each member own {locked.keys_per_member} active keys. Revoke one, or "
            "ask an operator for more."
        )


def limit_key(key: ApiKey, owner: User | AnonymousUser) -> None:
    """Make an unsaved key the member's, with the limits of members' keys."""
    key.owner_id = owner.pk
    for name in MEMBER_LIMITS:
        column = name.removeprefix(MEMBER_PREFIX)
        if column != name:
            setattr(key, column, getattr(key.organization, name))


def _record(member: Membership, change: list[str | None], actor: Actor) -> None:
    what = {f"member {member.user.get_username()}": change}
    audit.record(actor, AuditAction.CHANGED, member.organization, what)
