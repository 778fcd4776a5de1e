"""Which rows a signed-in user sees, and which of them they may change.

A user with a role, or a superuser, is an operator: permissions alone decide. A user who has
memberships and no role is confined to their organizations: every list, search, link and export of
the admin goes through `select_seen`, and every action through `select_managed`. A table that is not
in `_TABLES` has no rows for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Model, Q, QuerySet

from completions.models import (
    Adapter,
    ApiKey,
    AuditEntry,
    Batch,
    File,
    Job,
    MemberRole,
    Membership,
    Organization,
    Preset,
    Refusal,
    Session,
    StoredPrompt,
    UsageHour,
    UsageRecord,
)

Rows = TypeVar("Rows", bound=QuerySet[Any])
Viewer = User | AnonymousUser
Roles = Mapping[int, str]
"""The user's role by the organization's id."""


@dataclass(frozen=True, slots=True)
class _Table:
    """How the rows of a table belong to organizations and users, as lookups."""

    organization: str = "organization"
    owner: str = ""
    """Leads to the member who may change the row; without one, only admins may."""
    is_for_admins: bool = False


_TABLES: Mapping[type[Model], _Table] = {
    Organization: _Table("pk"),
    ApiKey: _Table(owner="owner"),
    Membership: _Table(is_for_admins=True),
    AuditEntry: _Table(is_for_admins=True),
    **dict.fromkeys((Batch, File, UsageRecord, UsageHour, Refusal), _Table(owner="api_key__owner")),
    **dict.fromkeys((Job, Preset, Session, StoredPrompt, Adapter), _Table()),
}
_CACHE = "_quire_roles"


def read_roles(user: Viewer) -> Roles:
    """Return the organizations that the user is confined to; nothing if they are an operator."""
    if user.is_superuser or not user.is_authenticated:
        return {}
    roles: Roles | None = user.__dict__.get(_CACHE)
    if roles is None:
        rows = Membership.objects.filter(user=user.pk).order_by()
        roles = dict(rows.values_list("organization_id", "role"))
        if roles and (user.groups.exists() or user.user_permissions.exists()):
            roles = {}
        user.__dict__[_CACHE] = roles
    return roles


def is_confined(user: Viewer) -> bool:
    return bool(read_roles(user))


def sees_organization(user: Viewer, organization_id: int) -> bool:
    roles = read_roles(user)
    return not roles or organization_id in roles


def select_seen(rows: Rows, user: Viewer) -> Rows:
    """Select the rows of the user's organizations; all of them for an operator."""
    roles = read_roles(user)
    if not roles:
        return rows
    table = _TABLES.get(rows.model)
    if table is None:
        return rows.none()
    seen = _list_administered(roles) if table.is_for_admins else list(roles)
    return rows.filter(**{f"{table.organization}__in": seen})


def select_managed(rows: Rows, user: Viewer) -> Rows:
    """Select the rows that the user may change or act as: their own, and all of the organizations
    whose admin they are. An organization itself belongs to operators."""
    roles = read_roles(user)
    if not roles:
        return rows
    table = _TABLES.get(rows.model)
    if table is None or rows.model is Organization:
        return rows.none()
    managed = Q(**{f"{table.organization}__in": _list_administered(roles)})
    if table.owner:
        managed |= Q(**{f"{table.organization}__in": list(roles), table.owner: user.pk})
    return rows.filter(managed)


def select_administered(
    organizations: QuerySet[Organization], user: Viewer
) -> QuerySet[Organization]:
    """Select the organizations whose members the user manages."""
    roles = read_roles(user)
    return organizations.filter(pk__in=_list_administered(roles)) if roles else organizations


def may_manage(user: Viewer, row: Model) -> bool:
    if not is_confined(user):
        return True
    return select_managed(type(row)._default_manager.filter(pk=row.pk), user).exists()


def _list_administered(roles: Roles) -> list[int]:
    return [organization for organization, role in roles.items() if role == MemberRole.ADMIN]
