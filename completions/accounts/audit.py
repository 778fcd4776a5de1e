"""Writes the audit trail: one entry per change of an organization or key, in its transaction."""

import getpass
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import AnonymousUser, User

from completions.models import ApiKey, AuditAction, AuditEntry, Organization

Audited = ApiKey | Organization
SECRET = frozenset({"digest", "previous_digest"})
"""Fields whose values no entry contains."""
_LEFT_OUT = SECRET | {"id", "created_at", "last_used_at"}


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change."""

    name: str
    user_id: int | None = None

    @classmethod
    def of(cls, user: User | AnonymousUser) -> "Actor":
        """Return the actor for a user of the admin."""
        return cls(f"admin:{user.get_username()}", user.pk)

    @classmethod
    def shell(cls) -> "Actor":
        """Return the actor for the user who runs a management command."""
        try:
            return cls(f"cli:{getpass.getuser()}")
        except (KeyError, OSError):  # users of containers often have no name
            return cls("cli")


SERVICE = Actor("service")
"""The installation itself, which creates the demo key on its first start."""


def record(
    actor: Actor, action: AuditAction, thing: Audited, changes: Mapping[str, Any] | None = None
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


def state_of(thing: Audited) -> dict[str, Any]:
    """Return the audited fields as JSON values."""
    fields = (field.attname for field in thing._meta.concrete_fields)
    return {name: _plain(getattr(thing, name)) for name in fields if name not in _LEFT_OUT}


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], fields: Iterable[str] | None = None
) -> dict[str, list[Any]]:
    """`{field: [was, is]}` of what differs."""
    names = after.keys() if fields is None else [name for name in fields if name in after]
    return {
        name: [before.get(name), after[name]] for name in names if before.get(name) != after[name]
    }


def given(thing: Audited) -> dict[str, list[Any]]:
    """Return the changes for a new object: its fields that are not empty."""
    return {name: [None, value] for name, value in state_of(thing).items() if value not in _EMPTY}


_EMPTY: tuple[Any, ...] = (None, "", [], {})


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return f"{value.normalize():f}" if isinstance(value, Decimal) else value
