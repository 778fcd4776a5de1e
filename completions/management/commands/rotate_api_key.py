"""`manage.py rotate_api_key NAME_OR_PREFIX`: prints only the new secret on standard output."""

from argparse import ArgumentParser
from datetime import timedelta

from django.core.management.base import BaseCommand, CommandError

from completions.accounts import changes
from completions.accounts.audit import Actor
from completions.management.key_selection import describe_key, find_only_key

MAX_HOURS = 24 * 365


class Command(BaseCommand):
    help = "Give an API key a new secret and print it. The old secret works for some more hours."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name_or_prefix", help="a key's name, or the beginning of its secret")
        parser.add_argument(
            "--grace-hours",
            type=float,
            default=24.0,
            metavar="N",
            help="hours for which the old secret still works (default: %(default)g)",
        )

    def handle(self, *, name_or_prefix: str, grace_hours: int, **options: object) -> None:
        hours = grace_hours
        if not 0 <= hours <= MAX_HOURS:
            raise CommandError(f"--grace-hours must be from 0 to {MAX_HOURS}")
        key = find_only_key(name_or_prefix)
        secret = changes.rotate(key, timedelta(hours=hours), Actor.from_shell())
        self.stderr.write(
            f"sk-{key.public_id}-…, {describe_key(key)}, works for {hours:g} more hours."
        )
        self.stdout.write(secret)
