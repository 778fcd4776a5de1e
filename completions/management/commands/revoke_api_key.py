"""`manage.py revoke_api_key NAME_OR_PREFIX`: revokes one key in every web process."""

from argparse import ArgumentParser

from django.core.management.base import BaseCommand
from django.utils import timezone

from completions.accounts import changes
from completions.accounts.audit import Actor
from completions.management.key_selection import describe_key, find_only_key


class Command(BaseCommand):
    help = (
        "Revoke the API key with this name or this beginning of a secret, with all its secrets: "
        "after a rotation, the old and the new one."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name_or_prefix", help="a key's name, or the beginning of its secret")

    def handle(self, *, name_or_prefix: str, **options: object) -> None:
        key = find_only_key(name_or_prefix)
        changes.revoke(key, Actor.from_shell())
        names = " and ".join(f"sk-{each}-…" for each in key.working_public_ids(timezone.now()))
        self.stdout.write(f"Revoked {names}, {describe_key(key)}.")
