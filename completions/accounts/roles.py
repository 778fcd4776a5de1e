"""The roles of every installation: groups for users who are not superusers.

They are created after each migration. Permissions that an administrator adds to them stay.
"""

from typing import Any

from django.contrib.auth.models import Group, Permission

VIEWER = "Viewer"
"""May see everything and change nothing."""
OPERATOR = "Operator"
"""May also create and change keys, and act on batches, jobs and workers."""
_ACTS = ("add_apikey", "change_apikey", "change_batch", "change_job")
_PRIVATE = ("view_batchline", "view_storedprompt")
"""Permissions for tables without a page."""


def ensure(**_signal: Any) -> None:
    """Create the groups and add the permissions that they lack."""
    ours = Permission.objects.filter(content_type__app_label="completions")
    sees = ours.filter(codename__startswith="view_").exclude(codename__in=_PRIVATE)
    viewer, _ = Group.objects.get_or_create(name=VIEWER)
    viewer.permissions.add(*sees)
    operator, _ = Group.objects.get_or_create(name=OPERATOR)
    operator.permissions.add(*sees, *ours.filter(codename__in=_ACTS))
