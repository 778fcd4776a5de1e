"""`manage.py backup`: one archive of the database, the files and the secrets."""

from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from project.backups import BackupError, making


class Command(BaseCommand):
    help = "Write the database, the files and the secrets to one archive, while the service runs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "path",
            type=Path,
            metavar="PATH",
            help="a folder for the archive, or the archive to write, ending in .tar",
        )

    def handle(self, path: Path, *args: Any, **options: Any) -> None:
        if path.is_dir():
            path = path / f"quire-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar"
        elif path.suffix != ".tar":
            raise CommandError(f"{path} is no folder. Make it, or name an archive: {path}.tar")
        if not path.parent.is_dir():
            raise CommandError(f"{path.parent} is no folder. Make it first.")
        if path.exists():
            raise CommandError(f"{path} exists. Name another archive, or a folder.")
        try:
            summary = making.make(path)
        except (BackupError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{path}: {summary}")
