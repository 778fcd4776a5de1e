"""`manage.py create_api_key NAME`: prints the new key's secret, alone, on standard output."""

from argparse import ArgumentParser, ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from completions import keys, model_files
from completions.jobs.limits import Limits
from completions.models import Organization

DEFAULT_ORGANIZATION = "default"


class Command(BaseCommand):
    help = "Create an API key and print its secret, which cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="what the key is for; shown in lists")
        parser.add_argument(
            "--organization", default=DEFAULT_ORGANIZATION, help="made when new (%(default)s)"
        )
        parser.add_argument(
            "--models", type=_names, default=[], metavar="A,B", help="only these models"
        )
        parser.add_argument("--expires-in-days", type=_days, metavar="N")
        parser.add_argument("--rpm", type=_positive, metavar="N", help="requests per minute")
        parser.add_argument("--tpm", type=_positive, metavar="N", help="tokens per minute")
        parser.add_argument(
            "--max-concurrency", type=_positive, metavar="N", help="calls and streams at a time"
        )

        parser.add_argument(
            "--max-priority", type=_priority, default=0, metavar="N",
            help="largest `priority` of a request, up to 100 (%(default)s)",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        _check_models(options["models"])
        days = options["expires_in_days"]
        organization, _ = Organization.objects.get_or_create(name=options["organization"])
        _, secret = keys.create(
            organization,
            options["name"],
            allowed_models=options["models"],
            expires_at=timezone.now() + timedelta(days=days) if days else None,
            limits=Limits(options["rpm"], options["tpm"], options["max_concurrency"]),
            max_priority=options["max_priority"],
        )
        self.stdout.write(secret)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _days(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 36500:
        raise ArgumentTypeError("must be a number of days from 1 to 36500")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 2**31 - 1:
        raise ArgumentTypeError("must be a whole number from 1 to 2147483647")
    return int(text)


def _priority(text: str) -> int:
    if not text.isdecimal() or int(text) > 100:
        raise ArgumentTypeError("must be a whole number from 0 to 100")
    return int(text)


def _check_models(names: list[str]) -> None:
    known = [entry.id for entry in model_files.served_models()]
    for name in names:
        if name not in known:
            raise CommandError(f"no model {name!r} in models.toml; there are: {', '.join(known)}")
