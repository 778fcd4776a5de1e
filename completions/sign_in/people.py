"""From a provider's identity to a user of the admin: a stable name, roles, and the audit trail."""

import hashlib
from collections.abc import Mapping
from datetime import timedelta

from django.contrib.auth.models import Group, User
from django.db import transaction
from django.utils import timezone

from completions.accounts import audit, members
from completions.accounts.audit import Actor
from completions.accounts.operator_groups import USER_PREFIX
from completions.models import AuditAction, AuditEntry, Membership, Organization
from completions.sign_in.configuration import SUPERUSER, Configuration

_PROVIDER = Actor("OpenID Connect")
_LONGEST_SUBJECT = 255
"""The limit of OpenID Connect Core, section 2."""
STRANGERS_PER_HOUR = 100
"""The most refusals without a verified identity in the audit trail: anyone can cause them."""


class NotAdmittedError(Exception):
    """The identity is verified, but the user may not enter."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


def admit(claims: Mapping[str, object], configuration: Configuration, address: str) -> User:
    """Return the user of verified claims, created at the first sign-in, with the roles of today's
    groups. Raises NotAdmittedError. The audit trail records both."""
    try:
        with transaction.atomic():
            return _admit(claims, configuration, address)
    except NotAdmittedError as refusal:
        with transaction.atomic():
            _refuse(claims, configuration, str(refusal), address)
        raise


def refuse_stranger(reason: str, address: str) -> None:
    """Record a sign-in that failed before anyone was identified, unless too many did."""
    hour = timezone.now() - timedelta(hours=1)
    refused = AuditEntry.objects.filter(action=AuditAction.REFUSED, user=None, at__gt=hour)
    if refused.count() < STRANGERS_PER_HOUR:
        audit.record_sign_in(
            AuditAction.REFUSED, "unknown", None, _make_changes(address, reason=reason)
        )


def _admit(claims: Mapping[str, object], configuration: Configuration, address: str) -> User:
    name = make_user_name(configuration.issuer, claims.get("sub"))
    groups = _list_groups(claims, configuration.groups_claim)
    roles = configuration.list_roles(groups)
    memberships = configuration.list_memberships(groups)
    given = Membership.objects.filter(user__username=name, by_provider=False)
    if not roles and not memberships and not given.exists():
        raise NotAdmittedError(
            "None of your groups has a role here.",
            "Ask an administrator of the provider to add you to one of the groups with a role: "
            f"{', '.join(sorted({group for group, _ in configuration.roles}))}. "
            f"Quire reads your groups from the claim {configuration.groups_claim}.",
        )
    names = roles - {SUPERUSER}
    group_rows = list(Group.objects.filter(name__in=names))
    if missing := names - {group.name for group in group_rows}:
        raise NotAdmittedError(
            f"The role {min(missing)} does not exist here.",
            "Ask an administrator to create it under Roles, or to change QUIRE_OIDC_ROLES.",
        )
    organizations = {each.name: each for each in Organization.objects.filter(name__in=memberships)}
    if absent := memberships.keys() - organizations.keys():
        raise NotAdmittedError(
            f"The organization {min(absent)} does not exist here.",
            "Ask an administrator to create it under Organizations, or to change QUIRE_OIDC_ROLES.",
        )
    user, created = User.objects.select_for_update().get_or_create(username=name)
    if created:
        user.set_unusable_password()
    if not user.is_active:
        raise NotAdmittedError(
            "Your account is switched off here.",
            "Ask an administrator to switch it on under Users.",
        )
    before = _list_roles(user)
    user.is_staff, user.is_superuser = True, SUPERUSER in roles
    user.email = _get_text(claims, "email", 254)
    user.first_name = _get_text(claims, "given_name", 150) or _get_text(claims, "name", 150)
    user.last_name = _get_text(claims, "family_name", 150)
    user.save()
    user.groups.set(group_rows)
    members.follow_provider(
        user, {organizations[each]: role for each, role in memberships.items()}, _PROVIDER
    )
    changes = _make_changes(address, email=user.email) | {"roles": [before, sorted(roles)]}
    audit.record_sign_in(AuditAction.SIGNED_IN, name, user, changes)
    return user


def _refuse(
    claims: Mapping[str, object], configuration: Configuration, reason: str, address: str
) -> None:
    """Take away what earlier sign-ins gave, and record the refusal."""
    try:
        name = make_user_name(configuration.issuer, claims.get("sub"))
    except NotAdmittedError:
        return refuse_stranger(reason, address)
    user = User.objects.filter(username=name).first()
    changes = _make_changes(address, reason=reason, email=_get_text(claims, "email", 254))
    if user is not None:
        changes |= {"roles": [_list_roles(user), []]}
        user.groups.clear()
        groups = _list_groups(claims, configuration.groups_claim)
        # Groups that name a missing organization are an operator's mistake: revoke no keys for it.
        if not configuration.list_memberships(groups):
            members.follow_provider(user, {}, _PROVIDER)
        User.objects.filter(pk=user.pk).update(is_staff=False, is_superuser=False)
    audit.record_sign_in(AuditAction.REFUSED, name, user, changes)
    return None


def make_user_name(issuer: str, subject: object) -> str:
    """Return the user's name, unique by issuer and subject. No form accepts a colon in a name, so
    no account with a password has such a name. Raises NotAdmittedError."""
    if (
        not isinstance(subject, str)
        or not 0 < len(subject) <= _LONGEST_SUBJECT
        or not (subject.isascii() and subject.isprintable())
    ):
        advice = "Ask an administrator to check the claim sub in the provider's settings."
        raise NotAdmittedError("The provider sent no usable subject.", advice)
    prefix = f"{USER_PREFIX}{_make_digest(issuer, 8)}:"
    room = User._meta.get_field("username").max_length or 150
    fits = len(prefix) + len(subject) <= room and not subject.startswith("sha256-")
    return prefix + (subject if fits else f"sha256-{_make_digest(subject, 64)}")


def _list_groups(claims: Mapping[str, object], claim: str) -> frozenset[str]:
    """Return the values of the claim: one text or a list of them. An e-mail address must be
    verified."""
    value = claims.get(claim)
    if claim == "email" and claims.get("email_verified") is not True:
        return frozenset()
    values = value if isinstance(value, list) else [value]
    return frozenset(each for each in values if isinstance(each, str))


def _list_roles(user: User) -> list[str]:
    held = list(user.groups.values_list("name", flat=True))
    return sorted([*held, SUPERUSER] if user.is_superuser else held)


def _make_changes(address: str, **facts: str) -> dict[str, object]:
    items = {"address": address, **facts}.items()
    return {name: [None, _make_storable(value)] for name, value in items if value}


def _get_text(claims: Mapping[str, object], claim: str, max_length: int) -> str:
    value = claims.get(claim)
    return _make_storable(value)[:max_length] if isinstance(value, str) else ""


def _make_storable(text: str) -> str:
    """Return the text without what a database refuses: U+0000, and half a surrogate pair."""
    return text.replace("\0", "").encode(errors="replace").decode()


def _make_digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
