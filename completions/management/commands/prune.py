"""`manage.py prune`: what the CPU worker does once a minute, now."""

from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from completions.upkeep import pruning


class Command(BaseCommand):
    help = "Delete expired files, results and usage records, and fold old hours of usage into days."

    def handle(self, *args: Any, **options: Any) -> None:
        for what, count in pruning.prune(timezone.now()).items():
            self.stdout.write(f"{what}: {count}")
