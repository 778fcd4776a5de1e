"""`manage.py restore`: puts a backup in the place of this installation's data."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from project.backups import BackupError, making


class Command(BaseCommand):
    help = (
        "Put a backup in the place of this installation's data. Stop the service first. What was "
        "there is kept in a folder of QUIRE_HOME; a PostgreSQL database is overwritten."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", type=Path, metavar="ARCHIVE")
        parser.add_argument(
            "--replace", action="store_true", help="even if this installation has data"
        )

    def handle(self, path: Path, *args: Any, replace: bool, **options: Any) -> None:
        try:
            summary, aside = making.restore(path, replace)
        except (BackupError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Restored {path}: {summary}")
        if aside is not None:
            self.stdout.write(f"What was there is in {aside}: delete it once all is well.")
        self.stdout.write("Run `manage.py migrate`, which `up` does too, and start the service.")
