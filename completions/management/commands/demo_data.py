"""`manage.py demo_data`: a month of made-up usage, to look at the admin with."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from completions.management import invented_data


class Command(BaseCommand):
    help = (
        f"Make a month of usage for organizations named '{invented_data.MARK}...'; "
        "--remove deletes it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--requests", type=int, default=50_000, help="default 50000")
        parser.add_argument("--days", type=int, default=30, help="default 30")
        parser.add_argument("--remove", action="store_true", help="take all of it away")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["remove"]:
            self.stdout.write(f"{invented_data.remove()} demo organizations removed")
            return
        if options["requests"] < 1 or options["days"] < 1:
            raise CommandError("--requests and --days must be at least 1")
        try:
            invented_data.fill(options["requests"], timezone.now(), options["days"])
        except invented_data.DemoDataExistsError:
            raise CommandError("there is demo data; --remove takes it away") from None
        self.stdout.write(
            f"{options['requests']} requests made; manage.py demo_data --remove undoes it"
        )
