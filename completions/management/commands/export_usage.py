"""`manage.py export_usage`: usage, or refused requests, as CSV on standard output."""

from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, datetime, timedelta

from django.core.management.base import BaseCommand, CommandError

from completions.models import Organization, Refusal, UsageHour
from completions.usage import report


class Command(BaseCommand):
    help = (
        "Print usage as CSV: one line per hour or day (UTC), API key, model and adapter. With "
        "--refusals: one line per hour, API key and error code."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--from", dest="begin", type=_day, metavar="YYYY-MM-DD")
        parser.add_argument(
            "--to", dest="end", type=_day, metavar="YYYY-MM-DD", help="the last day, inclusive"
        )
        parser.add_argument("--organization", metavar="ORG", help="only this organization")
        parser.add_argument(
            "--bucket", choices=report.WIDTHS, default="1d", help="default: %(default)s"
        )
        parser.add_argument(
            "--refusals", action="store_true", help="print refused requests instead, by hour"
        )

    def handle(
        self,
        *,
        begin: datetime | None,
        end: datetime | None,
        organization: str | None,
        bucket: str,
        refusals: bool,
        **options: object,
    ) -> None:
        if begin and end and end < begin:
            raise CommandError("--to must not be before --from")
        span: dict[str, object] = {}
        if begin:
            span["hour__gte"] = begin
        if end:
            span["hour__lte"] = end + timedelta(hours=23)
        if organization:
            owner = Organization.objects.filter(name=organization).first()
            if owner is None:
                raise CommandError(f"there is no organization {organization!r}")
            span["organization"] = owner
        if refusals:
            report.write_refusals(Refusal.objects.filter(**span), self.stdout)
        else:
            hours = UsageHour.objects.filter(**span)
            report.write_csv(hours, report.UNITS[bucket], self.stdout)


def _day(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not a date such as 2026-01-31") from error
