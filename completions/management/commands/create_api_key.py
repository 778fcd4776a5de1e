"""`manage.py create_api_key NAME`: prints only the new key's secret on standard output."""

import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from completions.accounts import changes
from completions.accounts.audit import Actor
from completions.catalog import model_files
from completions.contract.limits import LIMITS
from completions.models import ApiKey, Role, Scope
from completions.models.organizations import all_scopes

DEFAULT_ORGANIZATION = "default"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _integer(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{text!r} is not an integer from {least} to {most}")
        return int(text)

    return read


def _money(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ArgumentTypeError(f"{text!r} is not a number") from error


_count = _integer(1, 2**31 - 1)
_LIMITS: tuple[tuple[str, str, Callable[[str], object], str], ...] = (
    *((limit.option, limit.column, _count, limit.help) for limit in LIMITS),
    ("--daily-token-budget", "daily_token_budget", _count, "tokens per day (UTC)"),
    ("--monthly-token-budget", "monthly_token_budget", _count, "tokens per month (UTC)"),
    ("--daily-cost-budget", "daily_cost_budget", _money, "cost per day, see models.toml"),
    ("--monthly-cost-budget", "monthly_cost_budget", _money, "cost per month, see models.toml"),
    ("--max-enqueued-tokens", "max_enqueued_tokens", _count, "prompt tokens in unfinished batches"),
)
"""Options, the fields of ApiKey that they set, their types and help texts."""


class Command(BaseCommand):
    help = "Create an API key and print its secret, which cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("name", help="what the key is for; shown in lists")
        add(
            "--organization",
            default=DEFAULT_ORGANIZATION,
            help="created if it does not exist (default: %(default)s)",
        )
        add("--models", type=_names, default=[], metavar="A,B", help="only these models")
        add("--expires-in-days", type=_integer(1, 36500), metavar="N")
        add(
            "--max-priority",
            type=_integer(-100, 100),
            default=0,
            metavar="N",
            help="highest `priority` of a request, -100 to 100 (default: %(default)s)",
        )
        add(
            "--role",
            choices=Role.values,
            default=Role.MEMBER,
            help="admin: usage and adapters of the whole organization (default: %(default)s)",
        )
        scopes = f"only these of {', '.join(Scope.values)}"
        add("--scopes", type=_names, default=[], metavar="A,B", help=scopes)
        networks = "only from these addresses or CIDR networks"
        add("--networks", type=_names, default=[], metavar="A,B", help=networks)
        for option, field, kind, help in _LIMITS:
            add(option, dest=field, type=kind, metavar="N", help=help)

    def handle(self, *args: Any, **options: Any) -> None:
        model_ids = [entry.id for entry in model_files.load_catalog()]
        for name in options["models"]:
            if name not in model_ids:
                listed = ", ".join(model_ids)
                raise CommandError(f"models.toml has no model {name!r}; it has: {listed}")
        days = options["expires_in_days"]
        actor = Actor.from_shell()
        key = ApiKey(
            organization=changes.find_organization(options["organization"], actor),
            name=options["name"],
            role=options["role"],
            scopes=options["scopes"] or all_scopes(),
            allowed_models=options["models"],
            allowed_networks=options["networks"],
            expires_at=timezone.now() + timedelta(days=days) if days else None,
            max_priority=options["max_priority"],
            default_priority=min(0, options["max_priority"]),
            **{field: options[field] for _, field, _, _ in _LIMITS},
        )
        try:
            key.clean_fields(exclude=["public_id", "digest"])
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from error
        if ApiKey.objects.active().filter(organization=key.organization, name=key.name).exists():
            self.stderr.write(
                f"The organization {key.organization.name!r} already has an active key named "
                f"{key.name!r}. To rotate or revoke one of them, name it by the beginning of its "
                "secret."
            )
        self.stdout.write(changes.issue(key, actor))
        if sys.stderr.isatty():
            self.stderr.write("The service explains its API at /docs; /admin/ lists the keys.")
