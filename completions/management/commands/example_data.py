"""`manage.py example_data`: a month of made-up usage, for looking at the admin."""

from collections.abc import Callable

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from completions.management import example_data

_BAR_WIDTH = 30


class Command(BaseCommand):
    help = (
        f"Create a month of usage for organizations named '{example_data.MARK}...'; "
        "--remove deletes it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--requests", type=int, default=50_000, help="default 50000")
        parser.add_argument("--days", type=int, default=30, help="default 30")
        parser.add_argument("--remove", action="store_true", help="delete the example data")

    def handle(self, *, requests: int, days: int, remove: bool, **options: object) -> None:
        if remove:
            self.stdout.write(f"{example_data.remove()} example organizations deleted")
            return
        if requests < 1 or days < 1:
            raise CommandError("--requests and --days must be at least 1")
        try:
            example_data.fill(requests, timezone.now(), days, self._make_bar(requests))
        except example_data.ExampleDataExistsError:
            raise CommandError("example data exists already; delete it with --remove") from None
        if self.stderr.isatty():
            self.stderr.write("")
        self.stdout.write(
            f"{requests} requests created; delete them with: manage.py example_data --remove"
        )

    def _make_bar(self, requests: int) -> Callable[[int], None]:
        """Return what draws a bar on a terminal: a million requests take minutes."""

        def draw(made: int) -> None:
            filled = min(_BAR_WIDTH, _BAR_WIDTH * made // requests)
            bar = "#" * filled + "." * (_BAR_WIDTH - filled)
            self.stderr.write(f"\r\x1b[K[{bar}] {made:,} requests", str, ending="")
            self.stderr.flush()

        return draw if self.stderr.isatty() else lambda made: None
