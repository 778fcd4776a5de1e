"""`manage.py prune`: deletes expired data now; the background worker does it once a minute."""

from django.core.management.base import BaseCommand
from django.utils import timezone

from completions.maintenance import pruning


class Command(BaseCommand):
    help = "Delete expired files, results and usage records, and merge old hourly usage into days."

    def handle(self, *args: object, **options: object) -> None:
        for what, count in pruning.prune(timezone.now()).items():
            self.stdout.write(f"{what}: {count}")
