"""`manage.py verify_backup`: reads a backup and checks its database."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from project.backups import BackupError, making


class Command(BaseCommand):
    help = "Read a whole backup, compare its checksums, and check its database."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", type=Path, metavar="ARCHIVE")

    def handle(self, path: Path, *args: Any, **options: Any) -> None:
        try:
            summary = making.verify(path)
        except (BackupError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{path} is whole: {summary}")
