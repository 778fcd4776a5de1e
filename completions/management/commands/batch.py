"""`manage.py batch VERB`: the verbs of the client `quire`, beside those of submit and export."""

from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from completions.accounts.keys import make_principal
from completions.batches import files, resubmission, states
from completions.endpoints.batches import store_again
from completions.exceptions import APIError
from completions.management.commands.submit import follow, write_results
from completions.models import Batch, BatchStatus, File


class Command(BaseCommand):
    help = "List batches, and watch, start, cancel, fetch or resubmit one; see submit and export."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        listing = verbs.add_parser("list", help="list the newest batches")
        listing.add_argument("--limit", type=int, default=20)
        listing.add_argument("--organization", help="only its batches")
        for verb, what in (
            ("start", "run the lines that a dry run with --pilot has not run"),
            ("watch", "show the progress of a batch until it has ended"),
            ("cancel", "cancel a batch; its results so far are kept"),
            ("resubmit", "run the failed lines of a batch again; prints the new batch's id"),
            ("fetch", "write the results of a batch that has ended"),
        ):
            each = verbs.add_parser(verb, help=what)
            each.add_argument("batch")
            if verb == "fetch":
                each.add_argument("--to", type=Path, metavar="STEM", help="default: the batch's id")

    def handle(self, *args: object, verb: str, **options: Any) -> None:
        if verb == "list":
            self._list(options["limit"], options["organization"])
            return
        batch = Batch.objects.select_related("api_key").filter(id=options["batch"]).first()
        if batch is None:
            raise CommandError(f"there is no batch {options['batch']}")
        _VERBS[verb](self, batch, options)

    def _list(self, limit: int, organization: str | None) -> None:
        rows = Batch.objects.order_by("-created_at")
        if organization is not None:
            rows = rows.filter(organization__name=organization)
        for batch in rows[: max(0, limit)]:
            done = f"{batch.done}/{batch.total}"
            line = f"{batch.id}  {batch.status:<11}  {done}  {batch.name}"
            self.stdout.write(line.rstrip())

    def start(self, batch: Batch, options: Mapping[str, object]) -> None:
        if not states.start(batch.id, timezone.now()):
            raise CommandError(f"{batch.id} is not held")
        self.stdout.write(f"{batch.id} continues with all other lines")

    def watch(self, batch: Batch, options: Mapping[str, object]) -> None:
        batch = follow(batch, self.stdout)
        if batch.status != BatchStatus.COMPLETED:
            raise CommandError(f"{batch.id} is {batch.status}")

    def cancel(self, batch: Batch, options: Mapping[str, object]) -> None:
        states.cancel(batch.id, timezone.now())
        batch.refresh_from_db()
        self.stdout.write(batch.status)

    def resubmit(self, batch: Batch, options: Mapping[str, object]) -> None:
        if not resubmission.can_resubmit(batch):
            raise CommandError(f"{batch.id} has no failed lines, or has not ended")
        try:
            again, file = resubmission.prepare(batch, timezone.now())
            store_again(again, file, make_principal(batch.api_key))
        except File.DoesNotExist as error:
            raise CommandError(f"the files of {batch.id} were deleted or have expired") from error
        except (files.StorageLimitError, files.FileLostError, APIError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(again.id)

    def fetch(self, batch: Batch, options: Mapping[str, Any]) -> None:
        if not batch.has_ended:
            raise CommandError(f"{batch.id} is {batch.status}; fetch it once it has ended")
        write_results(batch, options["to"] or Path(batch.id), self.stdout)


_VERBS: Mapping[str, Callable[[Command, Batch, Mapping[str, Any]], None]] = {
    "start": Command.start,
    "watch": Command.watch,
    "cancel": Command.cancel,
    "resubmit": Command.resubmit,
    "fetch": Command.fetch,
}
