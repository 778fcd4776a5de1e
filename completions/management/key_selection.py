"""Finds the API key that an operator names in a command."""

from django.core.management.base import CommandError

from completions.models import ApiKey


def only_key(wanted: str) -> ApiKey:
    """Return the unrevoked key with this name or secret prefix. Raises CommandError."""
    found = [key for key in _matching(wanted) if key.revoked_at is None]
    if not found:
        raise CommandError(f"no unrevoked key matches {wanted!r}")
    if len(found) > 1:
        candidates = "\n".join(f"  sk-{key.public_id}  {described(key)}" for key in found)
        raise CommandError(
            f"{wanted!r} matches {len(found)} keys; name one by the beginning of its secret:\n"
            f"{candidates}"
        )
    return found[0]


def _matching(wanted: str) -> list[ApiKey]:
    stored = ApiKey.objects.select_related("organization")
    by_name = list(stored.filter(name=wanted))
    # Public ids are case-sensitive; SQLite's prefix search is not, and a secret is longer.
    public_id = wanted.removeprefix("sk-").partition("-")[0]
    if by_name or not public_id:
        return by_name
    return [
        key
        for key in stored.filter(public_id__startswith=public_id)
        if key.public_id.startswith(public_id)
    ]


def described(key: ApiKey) -> str:
    return f"{key.name!r} of {key.organization.name!r}"
