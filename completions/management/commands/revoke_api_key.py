"""`manage.py revoke_api_key NAME_OR_PREFIX`: ends one key, within a second in every web process."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from completions import keys
from completions.models import ApiKey


class Command(BaseCommand):
    help = "Revoke the API key with this name, or whose secret begins like this."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name_or_prefix", help="a key's name, or the beginning of its secret")

    def handle(self, *args: Any, **options: Any) -> None:
        wanted: str = options["name_or_prefix"]
        found = [key for key in _matching(wanted) if key.revoked_at is None]
        if not found:
            raise CommandError(f"no key that is not yet revoked matches {wanted!r}")
        if len(found) > 1:
            candidates = "\n".join(f"  sk-{key.public_id}  {_describe(key)}" for key in found)
            raise CommandError(
                f"{wanted!r} matches {len(found)} keys; name one by its beginning:\n{candidates}"
            )
        keys.revoke(found[0])
        self.stdout.write(f"Revoked sk-{found[0].public_id}-…, {_describe(found[0])}.")


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


def _describe(key: ApiKey) -> str:
    return f"{key.name!r} of {key.organization.name!r}"
