"""The permissions of members, as Django's: those of the tables that `accounts.scope` confines."""

from django.contrib.auth.backends import BaseBackend
from django.contrib.auth.models import AnonymousUser, User

from completions.accounts.scope import read_roles
from completions.models import MemberRole

_LABEL = "completions"
_SEES = ("apikey", "batch", "file", "job", "organization", "refusal", "session")
_SEES_USAGE = ("usagehour", "usagerecord")
_MEMBER = {
    *(f"{_LABEL}.view_{table}" for table in (*_SEES, *_SEES_USAGE)),
    *(f"{_LABEL}.change_{table}" for table in ("apikey", "batch", "job")),
    *(f"{_LABEL}.add_{table}" for table in ("apikey", "job")),
}
_ADMIN = {
    f"{_LABEL}.view_auditentry",
    *(f"{_LABEL}.{verb}_membership" for verb in ("view", "add", "change", "delete")),
}


class MemberBackend(BaseBackend):
    """Permissions that memberships give. It signs nobody in."""

    def get_group_permissions(self, user_obj: User | AnonymousUser, obj: object = None) -> set[str]:
        if not user_obj.is_active or obj is not None:
            return set()
        roles = read_roles(user_obj)
        if not roles:
            return set()
        return _MEMBER | _ADMIN if MemberRole.ADMIN in roles.values() else _MEMBER

    def has_module_perms(self, user_obj: User | AnonymousUser, app_label: str) -> bool:
        return app_label == _LABEL and bool(self.get_group_permissions(user_obj))
