"""`manage.py create_api_key NAME`: prints only the new key's secret on standard output."""

from argparse import ArgumentParser, ArgumentTypeError
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from completions.accounts import changes
from completions.accounts.audit import Actor
from completions.catalog import model_files
from completions.models import ApiKey, Role, Scope
from completions.models.organizations import all_scopes

DEFAULT_ORGANIZATION = "default"
BUDGETS = {
    "daily_token_budget": "tokens per day (UTC)",
    "monthly_token_budget": "tokens per month (UTC)",
    "daily_cost_budget": "cost per day, at the prices in models.toml",
    "monthly_cost_budget": "cost per month, at the prices in models.toml",
    "max_enqueued_tokens": "prompt tokens in unfinished batches",
}


class Command(BaseCommand):
    help = "Create an API key and print its secret, which cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="what the key is for; shown in lists")
        parser.add_argument(
            "--organization",
            default=DEFAULT_ORGANIZATION,
            help="created if it does not exist (default: %(default)s)",
        )
        parser.add_argument(
            "--models", type=_names, default=[], metavar="A,B", help="only these models"
        )
        parser.add_argument("--expires-in-days", type=_days, metavar="N")
        parser.add_argument("--rpm", type=_positive, metavar="N", help="requests per minute")
        parser.add_argument("--tpm", type=_positive, metavar="N", help="tokens per minute")
        parser.add_argument(
            "--max-concurrency",
            type=_positive,
            metavar="N",
            help="calls and streams at the same time",
        )
        parser.add_argument(
            "--max-priority", type=_priority, default=0, metavar="N",
            help="highest `priority` of a request, -100 to 100 (default: %(default)s)",
        )  # fmt: skip
        self._add_permissions(parser)
        for option, help in BUDGETS.items():
            kind = _money if "cost" in option else _positive
            flag = f"--{option.replace('_', '-')}"
            parser.add_argument(flag, type=kind, metavar="N", help=help)

    def _add_permissions(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--role", choices=Role.values, default=Role.MEMBER,
            help="admin may read the usage of its whole organization (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument(
            "--scopes", type=_names, default=[], metavar="A,B",
            help=f"only these of {', '.join(Scope.values)}",
        )  # fmt: skip
        parser.add_argument(
            "--networks", type=_names, default=[], metavar="A,B",
            help="only from these addresses or CIDR networks",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        _check_models(options["models"])
        days = options["expires_in_days"]
        actor = Actor.shell()
        key = ApiKey(
            organization=changes.organization_named(options["organization"], actor),
            name=options["name"],
            role=options["role"],
            scopes=options["scopes"] or all_scopes(),
            allowed_models=options["models"],
            allowed_networks=options["networks"],
            expires_at=timezone.now() + timedelta(days=days) if days else None,
            requests_per_minute=options["rpm"],
            tokens_per_minute=options["tpm"],
            max_concurrency=options["max_concurrency"],
            max_priority=options["max_priority"],
            default_priority=min(0, options["max_priority"]),
            **{name: options[name] for name in BUDGETS},
        )
        try:
            key.clean_fields(exclude=["public_id", "digest"])
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from error
        secret = changes.issue(key, actor)
        self.stdout.write(secret)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _days(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 36500:
        raise ArgumentTypeError(f"{text!r} is not a number of days from 1 to 36500")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 2**31 - 1:
        raise ArgumentTypeError(f"{text!r} is not an integer from 1 to 2147483647")
    return int(text)


def _money(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ArgumentTypeError(f"{text!r} is not a number") from error


def _priority(text: str) -> int:
    if not text.removeprefix("-").isdecimal() or abs(int(text)) > 100:
        raise ArgumentTypeError(f"{text!r} is not an integer from -100 to 100")
    return int(text)


def _check_models(names: list[str]) -> None:
    known = [entry.id for entry in model_files.served_models()]
    for name in names:
        if name not in known:
            raise CommandError(f"models.toml has no model {name!r}; it has: {', '.join(known)}")
