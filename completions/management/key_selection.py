"""Finds the API key that an operator names in a command."""

from django.core.management.base import CommandError
from django.db.models import Q
from django.utils import timezone

from completions.models import ApiKey
from completions.models.organizations import parse_public_id


def find_only_key(text: str) -> ApiKey:
    """Return the unrevoked key with this name, or with a secret that begins like this. A rotated
    key has two secrets until the grace of the old one ends. Raises CommandError."""
    keys = [key for key in _find_keys(text) if key.revoked_at is None]
    if not keys:
        raise CommandError(f"no unrevoked key matches {text!r}")
    if len(keys) > 1:
        candidates = "\n".join(f"  sk-{key.public_id}  {describe_key(key)}" for key in keys)
        raise CommandError(
            f"{text!r} matches {len(keys)} keys; name one by the beginning of its secret:\n"
            f"{candidates}"
        )
    return keys[0]


def _find_keys(text: str) -> list[ApiKey]:
    stored = ApiKey.objects.select_related("organization")
    by_name = list(stored.filter(name=text))
    beginning = parse_public_id(text)
    if by_name or not beginning:
        return by_name
    # Public ids are case-sensitive; SQLite's prefix search is not.
    keys = stored.filter(
        Q(public_id__startswith=beginning) | Q(previous_public_id__startswith=beginning)
    )
    now = timezone.now()
    return [
        key
        for key in keys
        if any(public_id.startswith(beginning) for public_id in key.working_public_ids(now))
    ]


def describe_key(key: ApiKey) -> str:
    return f"{key.name!r} of {key.organization.name!r}"
