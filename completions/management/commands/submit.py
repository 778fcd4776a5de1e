"""`manage.py submit FILE.jsonl [--wait]`: runs a batch from the operator's shell."""

import hashlib
import shutil
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files import File as Content
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from completions.accounts import changes
from completions.accounts.audit import Actor
from completions.batches import files, progress, states
from completions.endpoints.files import DEFAULT_KEEP
from completions.management.commands.create_api_key import DEFAULT_ORGANIZATION
from completions.models import ApiKey, Batch, BatchStatus, File
from completions.requests.preparation import ROUTES

KEY_NAME = "manage.py submit"
"""Name of the API key that owns these batches. Nobody has its secret."""
LOOK_EVERY = 0.5
SAY_EVERY = 10.0
"""Seconds between progress lines if the output is not a terminal."""
BAR = 30


class Command(BaseCommand):
    help = (
        "Run a file of requests as a batch. Needs a CPU worker and an engine worker, but no web "
        "server. --wait writes the results next to the file. If it is interrupted, run the same "
        "command again to resume waiting."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="one request per line, as for POST /v1/batches")
        parser.add_argument(
            "--wait", action="store_true", help="show progress and write the results"
        )
        parser.add_argument("--endpoint", choices=list(ROUTES), default=next(iter(ROUTES)))
        parser.add_argument(
            "--window", type=int, default=24, metavar="HOURS", choices=range(1, 169)
        )
        parser.add_argument("--organization", default=DEFAULT_ORGANIZATION)

    def handle(self, *args: Any, file: Path, wait: bool, **options: Any) -> None:
        if not file.is_file():
            raise CommandError(f"{file} is not a file")
        if file.stat().st_size > settings.MAX_FILE_BYTES:
            raise CommandError(f"{file} is larger than {settings.MAX_FILE_BYTES} bytes; split it")
        origin = {"submitted_from": str(file.resolve())[-512:], "sha256": _digest(file)}
        batch = _undelivered(origin, options["organization"])
        if batch is None:
            batch = _submit(file, origin, **options)
            self.stdout.write(f"submitted as {batch.id}")
        else:
            self.stdout.write(f"{file} was already submitted as {batch.id}")
        if not wait:
            self.stdout.write(f"to wait for the results, run: manage.py submit --wait {file}")
            return
        try:
            batch = self._follow(batch)
        except KeyboardInterrupt:
            message = f"\n{batch.id} continues; run the same command again to wait for it"
            raise CommandError(message, returncode=130) from None
        self._deliver(batch, file)

    def _follow(self, batch: Batch) -> Batch:
        """Show the progress until the batch has ended."""
        said, drawn = 0.0, False
        while not (batch := Batch.objects.get(id=batch.id)).ended:
            if self.stdout.isatty():
                self.stdout.write(f"\r\x1b[K{_bar(batch)}", ending="")
                self.stdout.flush()
                drawn = True
            elif time.monotonic() - said >= SAY_EVERY:
                said = time.monotonic()
                self.stdout.write(_bar(batch))
            time.sleep(LOOK_EVERY)
        self.stdout.write(f"{chr(10) if drawn else ''}{_bar(batch)}")
        return batch

    def _deliver(self, batch: Batch, file: Path) -> None:
        """Write the results next to the input. Raises CommandError unless the batch completed."""
        for what, file_id in (("output", batch.output_file_id), ("errors", batch.error_file_id)):
            found = File.objects.filter(id=file_id).first()
            if found is not None:
                target = file.with_name(f"{file.stem}.{what}.jsonl")
                _copy(found, target)
                self.stdout.write(f"{what}: {target}")
        metadata = {**(batch.metadata or {}), "delivered": "yes"}
        Batch.objects.filter(id=batch.id).update(metadata=metadata)
        if batch.status == BatchStatus.FAILED:
            faults = "\n".join(_fault(error) for error in batch.errors)
            raise CommandError(f"no line was run, because the file is invalid:\n{faults}")
        if batch.status != BatchStatus.COMPLETED:
            raise CommandError(f"the batch is {batch.status}; the error file lists the other lines")


def _submit(
    file: Path, origin: dict[str, str], endpoint: str, window: int, organization: str, **_: Any
) -> Batch:
    actor = Actor.shell()
    owner = changes.organization_named(organization, actor)
    key = ApiKey.objects.active().filter(organization=owner, name=KEY_NAME).first()
    if key is None:
        key, _secret = changes.create(owner, KEY_NAME, actor)
    with file.open("rb") as content:
        try:
            stored = files.store_upload(
                Content(content), file.name[:255], (owner.pk, key.pk), DEFAULT_KEEP
            )
        except files.StorageLimitError as error:
            raise CommandError(
                f"the files of {organization} exceed {settings.MAX_STORED_BYTES} bytes in all"
            ) from error
    batch = Batch(
        endpoint=endpoint,
        completion_window=f"{window}h",
        output_seconds=int(DEFAULT_KEEP.total_seconds()),
        metadata=origin,
    )
    states.place(batch, stored, (owner.pk, key.pk), ROUTES[endpoint].view_type.id_prefix)
    batch.save(force_insert=True)
    return batch


def _undelivered(origin: dict[str, str], organization: str) -> Batch | None:
    """Return the newest batch of this file whose results were not written yet."""
    same = Batch.objects.filter(organization__name=organization, api_key__name=KEY_NAME)
    for batch in same.filter(metadata__sha256=origin["sha256"]).order_by("-created_at"):
        if batch.metadata == origin:
            return batch
    return None


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _bar(batch: Batch) -> str:
    if batch.status == BatchStatus.VALIDATING:
        waited = (timezone.now() - batch.created_at).total_seconds()
        hint = "; is the service running (make serve)?" if waited > SAY_EVERY else ""
        return f"validating the file{hint}"
    filled = BAR * batch.done // max(1, batch.total)
    at = progress.of(batch, timezone.now())
    pace = "" if batch.ended or not at.lines_per_second else f", {at.lines_per_second:.1f}/s"
    left = "" if batch.ended or at.seconds_left is None else f", {_clock(at.seconds_left)} left"
    failed = f", {batch.failed} failed" if batch.failed else ""
    bar = "#" * filled + "." * (BAR - filled)
    return f"[{bar}] {batch.done}/{batch.total}{failed}{pace}{left} ({batch.status})"


def _clock(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _fault(error: dict[str, Any]) -> str:
    where = "the file" if error["line"] is None else f"line {error['line']}"
    return f"  {where}: {error['code']}: {error['message']}"


def _copy(found: File, target: Path) -> None:
    """Copy a file's content atomically."""
    draft = target.with_name(f".{target.name}.draft")
    with found.content.open("rb") as content, draft.open("wb") as copy:
        shutil.copyfileobj(content, copy)
    draft.replace(target)
