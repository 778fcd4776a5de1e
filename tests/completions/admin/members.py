"""A user of the admin in an organization, as tests sign them in."""

from django.contrib.auth.models import User
from django.test import Client

from completions.accounts import members
from completions.accounts.audit import SERVICE
from completions.models import MemberRole, Membership, Organization


def join(organization: Organization, name: str, role: MemberRole = MemberRole.MEMBER) -> User:
    user, _ = User.objects.get_or_create(username=name, defaults={"email": f"{name}@example.org"})
    members.save(Membership(organization=organization, user=user, role=role), SERVICE)
    return user


def sign_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
