"""`manage.py export BATCH --to TARGET`: the results of an ended batch as rows."""

from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import BaseCommand, CommandError

from completions.batches.export.rows import ExportError, open_source
from completions.batches.export.targets import HELP, parse_target
from completions.management.commands.verify import add_requests
from completions.models import Batch


class Command(BaseCommand):
    help = (
        "Write the results of an ended batch as rows of typed columns. If it is interrupted, run "
        "it again: no row is lost or repeated."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("batch", help="the id of a batch that has ended")
        parser.add_argument("--to", required=True, help=HELP)
        add_requests(parser)

    def handle(
        self, *args: object, batch: str, to: str, requests: Path | None, **options: object
    ) -> None:
        row = Batch.objects.filter(id=batch).first()
        if row is None:
            raise CommandError(f"there is no batch {batch}")
        try:
            report = parse_target(to).write(open_source(row, requests))
        except ExportError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(str(report))
