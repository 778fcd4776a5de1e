"""Writes the audit trail: one entry for each change of an organization or key, in the same
transaction, and for each sign-in by OpenID Connect."""

import getpass
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.contrib.auth.models import AnonymousUser, User

from completions.models import ApiKey, AuditAction, AuditEntry, Organization

Audited = ApiKey | Organization
SECRET = frozenset({"digest", "previous_digest"})
"""Fields whose values no entry contains."""
_LEFT_OUT = SECRET | {"id", "created_at", "last_used_at"}


@dataclass(frozen=True, slots=True)
class Actor:
    name: str
    user_id: int | None = None

    @classmethod
    def from_user(cls, user: User | AnonymousUser) -> "Actor":
        return cls(f"admin:{user.get_username()}", user.pk)

    @classmethod
    def from_shell(cls) -> "Actor":
        try:
            return cls(f"cli:{getpass.getuser()}")
        except (KeyError, OSError):  # in a container the user often has no name
            return cls("cli")


SERVICE = Actor("service")
"""The installation itself, which creates the demo key on its first start."""


def record(
    actor: Actor, action: AuditAction, thing: Audited, changes: Mapping[str, object] | None = None
) -> AuditEntry:
    """Write an entry. Runs in the caller's transaction."""
    is_key = isinstance(thing, ApiKey)
    return AuditEntry.objects.create(
        actor=actor.name,
        user_id=actor.user_id,
        organization_id=thing.organization_id if isinstance(thing, ApiKey) else thing.pk,
        action=action,
        object_type="api_key" if is_key else "organization",
        object_id=thing.pk,
        object_name=str(thing),
        changes=dict(changes or {}),
    )


def record_sign_in(
    action: AuditAction, name: str, user: User | None, changes: Mapping[str, object]
) -> AuditEntry:
    """Write an entry about a sign-in. `user` is None if it was refused and there is no account."""
    return AuditEntry.objects.create(
        actor=f"admin:{name}",
        user=user,
        action=action,
        object_type="user",
        object_id=user.pk if user is not None else 0,
        object_name=name,
        changes=dict(changes),
    )


def find_last_change(organization: Organization, field: str) -> datetime | None:
    """Return when a field of an organization got its value; None if no entry says so."""
    entries = AuditEntry.objects.filter(
        object_type="organization", object_id=organization.pk, changes__has_key=field
    )
    return entries.values_list("at", flat=True).first()


def record_use(actor: Actor, key: ApiKey, what: str, thing_id: str) -> AuditEntry:
    """Write an entry about what was done with a key, and to what: a batch started, for example."""
    return record(actor, AuditAction.USED, key, {what: [None, thing_id]})


def find_user(key: ApiKey, what: str, thing_id: str) -> str:
    """Return who did something with a key, from `record_use`; empty if no entry says so."""
    entries = AuditEntry.objects.filter(
        object_type="api_key", object_id=key.pk, changes={what: [None, thing_id]}
    )
    return entries.values_list("actor", flat=True).first() or ""


def read_state(thing: Audited) -> dict[str, object]:
    """Return the values of the audited fields as JSON."""
    fields = (field.attname for field in thing._meta.concrete_fields)
    return {name: _plain(getattr(thing, name)) for name in fields if name not in _LEFT_OUT}


def diff_states(
    before: Mapping[str, object], after: Mapping[str, object], fields: Iterable[str] | None = None
) -> dict[str, list[object]]:
    """Return `{field: [old, new]}` for the fields that differ."""
    names = after.keys() if fields is None else [name for name in fields if name in after]
    return {
        name: [before.get(name), after[name]] for name in names if before.get(name) != after[name]
    }


def list_initial_values(thing: Audited) -> dict[str, list[object]]:
    """Return the changes for a new object: its non-empty fields."""
    return {name: [None, value] for name, value in read_state(thing).items() if value not in _EMPTY}


_EMPTY: tuple[object, ...] = (None, "", [], {})


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return f"{value.normalize():f}" if isinstance(value, Decimal) else value
