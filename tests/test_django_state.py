"""What Django makes anew after each flush is the same when it comes from memory."""

import pytest
from django.contrib.auth.models import Group, Permission
from django.core.management import call_command


def _read() -> tuple[set[tuple[str, ...]], dict[str, set[str]]]:
    permissions = {permission.natural_key() for permission in Permission.objects.all()}
    roles = Group.objects.prefetch_related("permissions")
    return permissions, {
        role.name: {permission.codename for permission in role.permissions.all()} for role in roles
    }


@pytest.mark.django_db(transaction=True)
def test_permissions_and_roles_are_there_after_each_flush():
    made = _read()
    assert all(made)
    for _ in range(2):
        call_command("flush", interactive=False, verbosity=0)
        assert _read() == made
