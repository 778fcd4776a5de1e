"""Which rows a user sees in the panel of usage: each of its queries goes through `select_seen`."""

from typing import Any, TypeVar

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import QuerySet

Rows = TypeVar("Rows", bound=QuerySet[Any])
Viewer = User | AnonymousUser
PERMISSION = "completions.view_usagehour"


def select_seen(rows: Rows, user: Viewer) -> Rows:
    """Select the rows that the user may see: all of them, or none without the permission."""
    return rows if user.has_perm(PERMISSION) else rows.none()
