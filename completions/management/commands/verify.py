"""`manage.py verify FILE`: checks the receipts of an output file, without a model's weights."""

import asyncio
from argparse import ArgumentParser
from contextlib import closing
from pathlib import Path

from django.core.management.base import BaseCommand, CommandError

from completions.batches.receipts.source import SourceError, read_receipted
from completions.batches.receipts.verification import find_faults
from completions.requests.fair_semaphore import Checks
from completions.requests.validation import make_validator


def add_requests(parser: ArgumentParser) -> None:
    """Add the option of all commands that read results beside their requests."""
    parser.add_argument(
        "--requests",
        type=Path,
        metavar="FILE",
        help="the input file; by default, the one that the service keeps",
    )


class Command(BaseCommand):
    help = (
        "Check the receipts of an output file: request, tokenizer and grammar are those of the "
        "receipt, the token ids are in the grammar, and the text is theirs. Names each line that "
        "fails and exits with 1. Reads the tokenizer, and computes nothing."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="an output file of a batch with receipts")
        add_requests(parser)

    def handle(self, *args: object, file: Path, requests: Path | None, **options: object) -> None:
        checked = failed = 0
        try:
            with closing(make_validator()) as validator, asyncio.Runner() as loop:
                checks = Checks(validator)
                for line in read_receipted(file, requests):
                    checked += 1
                    faults = loop.run(find_faults(checks, line))
                    failed += bool(faults)
                    for fault in faults:
                        self.stdout.write(f"{line.custom_id}: {fault}")
        except SourceError as error:
            raise CommandError(str(error)) from error
        if failed:
            raise CommandError(f"{failed} of {checked} lines fail")
        self.stdout.write(f"{checked} lines hold")
