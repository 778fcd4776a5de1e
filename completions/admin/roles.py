"""Roles that every installation has, made after each migration: groups for users who are no
superusers. What an administrator adds to them stays."""

from typing import Any

from django.contrib.auth.models import Group, Permission

VIEWER = "Viewer"
"""Sees everything and changes nothing."""
OPERATOR = "Operator"
"""The same, and acts: keys, batches, jobs and workers."""
_ACTS = ("add_apikey", "change_apikey", "change_batch", "change_job")
_PRIVATE = ("view_batchline", "view_storedprompt")
"""Tables that have no page."""


def ensure(**_signal: Any) -> None:
    """Make the groups and give them what they lack."""
    ours = Permission.objects.filter(content_type__app_label="completions")
    sees = ours.filter(codename__startswith="view_").exclude(codename__in=_PRIVATE)
    viewer, _ = Group.objects.get_or_create(name=VIEWER)
    viewer.permissions.add(*sees)
    operator, _ = Group.objects.get_or_create(name=OPERATOR)
    operator.permissions.add(*sees, *ours.filter(codename__in=_ACTS))
