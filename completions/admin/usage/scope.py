"""Which rows a user sees in the panel of usage: each of its queries goes through `select_seen`."""

from completions.accounts import scope
from completions.accounts.scope import Rows
from completions.accounts.scope import Viewer as Viewer

PERMISSION = "completions.view_usagehour"


def select_seen(rows: Rows, user: Viewer) -> Rows:
    """Select the rows that the user may see: none without the permission."""
    return scope.select_seen(rows, user) if user.has_perm(PERMISSION) else rows.none()
