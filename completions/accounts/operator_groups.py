"""The permission groups for admin users who are not superusers.

They are created after each migration. Permissions that an administrator adds are kept.
"""

from django.contrib.auth.models import Group, Permission

USER_PREFIX = "oidc:"
"""The prefix of the names of users who sign in by OpenID Connect."""
VIEWER = "Viewer"
"""May see everything and change nothing."""
OPERATOR = "Operator"
"""May also create and change keys, act on batches, jobs and workers, and run requests as a key."""
_ACTS = (
    "add_apikey",
    "change_apikey",
    "change_batch",
    "add_job",
    "change_job",
    "change_webhookdelivery",
)
_PRIVATE = ("view_batchline", "view_storedprompt")
"""Permissions for tables that have no admin page."""


def ensure(**_signal: object) -> None:
    """Create the groups and add any missing permissions."""
    ours = Permission.objects.filter(content_type__app_label="completions")
    sees = ours.filter(codename__startswith="view_").exclude(codename__in=_PRIVATE)
    viewer, _ = Group.objects.get_or_create(name=VIEWER)
    viewer.permissions.add(*sees)
    operator, _ = Group.objects.get_or_create(name=OPERATOR)
    operator.permissions.add(*sees, *ours.filter(codename__in=_ACTS))
