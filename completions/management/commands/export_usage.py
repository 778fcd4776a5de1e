"""`manage.py export_usage`: usage by bucket, key, model and adapter as CSV on standard output."""

from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from completions.models import Organization, UsageHour
from completions.usage import report


class Command(BaseCommand):
    help = "Print usage as CSV: one line per hour or day (UTC), API key, model and adapter."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--from", dest="begin", type=_day, metavar="YYYY-MM-DD")
        parser.add_argument(
            "--to", dest="end", type=_day, metavar="YYYY-MM-DD", help="the last day, inclusive"
        )
        parser.add_argument("--organization", metavar="ORG", help="only this organization")
        parser.add_argument(
            "--bucket", choices=report.WIDTHS, default="1d", help="default: %(default)s"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["begin"] and options["end"] and options["end"] < options["begin"]:
            raise CommandError("--to must not be before --from")
        hours = UsageHour.objects.all()
        if options["begin"]:
            hours = hours.filter(hour__gte=options["begin"])
        if options["end"]:
            hours = hours.filter(hour__lte=options["end"] + timedelta(hours=23))
        if options["organization"]:
            owner = Organization.objects.filter(name=options["organization"]).first()
            if owner is None:
                raise CommandError(f"there is no organization {options['organization']!r}")
            hours = hours.filter(organization=owner)
        report.write_csv(hours, options["bucket"], self.stdout)


def _day(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not a date such as 2026-01-31") from error
