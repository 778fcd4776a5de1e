"""`manage.py submit FILE.jsonl [--wait]`: runs a batch from the operator's shell."""

import hashlib
import json
import shutil
import time
from argparse import ArgumentParser, ArgumentTypeError
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files import File as Content
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.utils import timezone

from completions.accounts import changes
from completions.accounts.audit import Actor
from completions.batches import files, progress, states
from completions.batches.export.rows import ExportError, open_source
from completions.batches.export.target import Target
from completions.batches.export.targets import HELP, parse_target
from completions.batches.input_lines import infer_endpoint
from completions.batches.planning import forecast
from completions.batches.planning.cache import read_cache_size
from completions.batches.planning.dry_run import perform_dry_run
from completions.endpoints.batch_request import MAX_PILOT_LINES
from completions.endpoints.files import DEFAULT_KEEP
from completions.exceptions import APIError
from completions.management.commands.create_api_key import DEFAULT_ORGANIZATION
from completions.models import OPEN_LINES, ApiKey, Batch, BatchStatus, File, OnInvalid, OnLate
from completions.models.window import parse_window
from completions.requests.preparation import ROUTES
from completions.requests.validation import make_validator

KEY_NAME = "manage.py submit"
"""Name of the API key that owns these batches. Nobody has its secret."""
LOOK_EVERY = 0.5
SAY_EVERY = 10.0
"""Seconds between progress lines if the output is not a terminal."""
BAR = 30


class Command(BaseCommand):
    help = (
        "Run a file of requests as a batch. Needs a background worker and an engine worker, but no "
        "web server. --wait writes the results next to the file. If it is interrupted, run the "
        "same command again to resume waiting."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="one request per line, as for POST /v1/batches")
        parser.add_argument(
            "--wait", action="store_true", help="show progress and write the results"
        )
        parser.add_argument("--to", help=f"--wait, and then write {HELP}")
        parser.add_argument(
            "--endpoint", choices=list(ROUTES), help="default: the url of the first line"
        )
        parser.add_argument(
            "--window",
            type=_window,
            default="24h",
            metavar="WINDOW",
            help="minutes, hours or days, 1m to 7d (a number alone: hours); default: 24h",
        )
        parser.add_argument(
            "--on-late",
            choices=OnLate.values,
            default=OnLate.ACCEPT,
            help="a batch that will probably not end in its window runs, or is refused",
        )
        parser.add_argument("--name", help="shown in lists of batches")
        parser.add_argument("--organization", default=DEFAULT_ORGANIZATION)
        parser.add_argument(
            "--on-invalid",
            choices=OnInvalid.values,
            default=OnInvalid.SKIP,
            help="a line with a refused body goes to the error file (skip), or fails the batch",
        )

        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="print a forecast as JSON; run only the lines of a pilot",
        )
        parser.add_argument(
            "--receipts", action="store_true", help="a receipt for each answered line; see verify"
        )
        parser.add_argument(
            "--close",
            action="store_true",
            help="constrained answers are whole texts also where max_tokens ends them",
        )
        parser.add_argument(
            "--pilot",
            type=int,
            metavar="N",
            choices=range(1, MAX_PILOT_LINES + 1),
            help="run N random lines first, to narrow the forecast",
        )

    def handle(self, *args: object, file: Path, wait: bool, **options: Any) -> None:
        dry_run = options["dry_run"]
        target = _parse_target(options["to"])
        if not file.is_file():
            raise CommandError(f"{file} is not a file")
        if file.stat().st_size > settings.MAX_FILE_BYTES:
            raise CommandError(f"{file} is larger than {settings.MAX_FILE_BYTES} bytes; split it")
        origin = _read_origin(file, options)
        if dry_run and options["pilot"] is None:
            self._rehearse(file, origin, options)
            return
        batch = _list_undelivered(origin, options["organization"])
        if batch is None:
            batch = store_batch(file, origin, options)
            if dry_run:
                self._pilot(batch)
                return
            self.stdout.write(f"submitted as {batch.id}")
        elif dry_run:
            self._pilot(batch)
            return
        elif states.start(batch.id, timezone.now()):
            self.stdout.write(f"{batch.id} continues after its pilot with all other lines")
        else:
            self.stdout.write(f"{_to_utf8(file)} was already submitted as {batch.id}")
        if not wait and target is None:
            again = f"manage.py submit --wait {_to_utf8(file)}"
            self.stdout.write(f"to wait for the results, run: {again}")
            return
        try:
            batch = follow(batch, self.stdout)
        except KeyboardInterrupt:
            message = f"\n{batch.id} continues; run the same command again to wait for it"
            raise CommandError(message, returncode=130) from None
        self._deliver(batch, file, target)

    def _rehearse(self, file: Path, origin: dict[str, str], options: dict[str, object]) -> None:
        """Print the forecast of a file that is stored for that time only."""
        batch = _make_batch(file, origin, options)
        try:
            with closing(make_validator()) as validator:
                result = perform_dry_run(batch, validator, read_cache_size)
        except APIError as error:
            raise CommandError(error.message) from error
        finally:
            File.objects.get(id=batch.input_file_id).delete()
        self.stdout.write(json.dumps(result.forecast, indent=2, ensure_ascii=False))
        if not result.is_valid:
            raise CommandError("the batch would not run: see errors")

    def _pilot(self, batch: Batch) -> None:
        """Wait for the pilot of a held batch, then print the forecast."""
        while batch.status == BatchStatus.VALIDATING or not batch.has_ended:
            pilot = batch.lines.filter(position__lt=batch.pilot or 0, state__in=OPEN_LINES)
            if batch.status != BatchStatus.VALIDATING and not pilot.exists():
                break
            time.sleep(LOOK_EVERY)
            batch = Batch.objects.get(id=batch.id)
        if batch.status == BatchStatus.FAILED:
            raise CommandError(list_faults(batch))
        refined = forecast.forecast_batch(batch, timezone.now())
        if refined is None:
            raise CommandError(f"{batch.id} ran no pilot, because every line was refused")
        self.stdout.write(json.dumps(refined, indent=2, ensure_ascii=False))
        self.stderr.write(f"{batch.id} is held; run the command without --dry-run to run the rest")

    def _deliver(self, batch: Batch, file: Path, target: Target | None) -> None:
        """Write the results next to the input. Raises CommandError unless the batch completed."""
        write_results(batch, file.with_suffix(""), self.stdout)
        if target is not None and batch.status != BatchStatus.FAILED:
            try:
                report = target.write(open_source(batch))
            except ExportError as error:
                message = f"{error}\nrun the same command again to export {batch.id}"
                raise CommandError(message) from error
            self.stdout.write(_to_utf8(report))
        metadata = {**(batch.metadata or {}), "delivered": "yes"}
        Batch.objects.filter(id=batch.id).update(metadata=metadata)
        if batch.status == BatchStatus.FAILED:
            raise CommandError(list_faults(batch))
        if batch.status != BatchStatus.COMPLETED:
            raise CommandError(f"the batch is {batch.status}; the error file lists the other lines")


def _read_origin(file: Path, options: dict[str, Any]) -> dict[str, str]:
    """Return the metadata of the file's batch, and set its endpoint if no option does."""
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
        content.seek(0)
        options["endpoint"] = options["endpoint"] or infer_endpoint(content)
    named = {"name": options["name"]} if options["name"] else {}
    return {"submitted_from": _to_utf8(file.resolve())[-512:], "sha256": digest, **named}


def follow(batch: Batch, output: OutputWrapper) -> Batch:
    """Show the progress until the batch has ended."""
    said, drawn = 0.0, False
    while not (batch := Batch.objects.get(id=batch.id)).has_ended:
        if output.isatty():
            output.write(f"\r\x1b[K{_bar(batch)}", ending="")
            output.flush()
            drawn = True
        elif time.monotonic() - said >= SAY_EVERY:
            said = time.monotonic()
            output.write(_bar(batch))
        time.sleep(LOOK_EVERY)
    output.write(f"{chr(10) if drawn else ''}{_bar(batch)}")
    return batch


def write_results(batch: Batch, stem: Path, output: OutputWrapper) -> None:
    """Write the output and the errors to `STEM.output.jsonl` and `STEM.errors.jsonl`."""
    for what, file_id in (("output", batch.output_file_id), ("errors", batch.error_file_id)):
        stored = File.objects.filter(id=file_id).first()
        if stored is not None:
            path = stem.with_name(f"{stem.name}.{what}.jsonl")
            _copy(stored, path)
            output.write(f"{what}: {_to_utf8(path)}")


def _window(text: str) -> str:
    """Read 24h, 24, 30m or 2d."""
    window = f"{text}h" if text.isdecimal() else text
    try:
        parse_window(window)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no window; it {error}") from error
    return window


def _parse_target(to: str | None) -> Target | None:
    """Parse the target of --to, if it can be written to. Raises CommandError."""
    if to is None:
        return None
    try:
        target = parse_target(to)
        target.check()
    except ExportError as error:
        raise CommandError(str(error)) from error
    return target


def _to_utf8(path: object) -> str:
    """Return a path, which need not be UTF-8, as SQL, JSON and a terminal take it."""
    return str(path).encode(errors="replace").decode()


def store_batch(file: Path, origin: dict[str, str], options: dict[str, Any]) -> Batch:
    """Store the file, and a batch with the options of its fields."""
    batch = _make_batch(file, origin, options)
    batch.pilot, batch.held = options["pilot"], options["dry_run"]
    batch.receipts = options["receipts"]
    batch.save(force_insert=True)
    return batch


def _make_batch(file: Path, origin: dict[str, str], options: dict[str, Any]) -> Batch:
    """Store the file, and return a batch of it that is not yet stored."""
    organization, endpoint = options["organization"], options["endpoint"]
    actor = Actor.from_shell()
    owner = changes.find_organization(organization, actor)
    key = ApiKey.objects.active().filter(organization=owner, name=KEY_NAME).first()
    if key is None:
        key, _secret = changes.create(owner, KEY_NAME, actor)
    ids = owner.pk, key.pk
    try:
        with file.open("rb") as content:
            name = _to_utf8(file.name)[:255]
            stored = files.store_upload(Content(content), name, ids, DEFAULT_KEEP)
    except files.StorageLimitError as error:
        raise CommandError(f"{organization}: {error}") from error
    except files.FileLostError as error:
        raise CommandError(str(error)) from error
    batch = Batch(
        endpoint=endpoint,
        completion_window=options["window"],
        on_late=options["on_late"],
        output_seconds=int(DEFAULT_KEEP.total_seconds()),
        metadata=origin,
        on_invalid=options["on_invalid"],
        close=options["close"],
    )
    states.set_origin(batch, stored, ids, ROUTES[endpoint].context_type.id_prefix)
    return batch


def _list_undelivered(origin: dict[str, str], organization: str) -> Batch | None:
    """Return the newest batch of this file whose results were not written yet."""
    same = Batch.objects.filter(organization__name=organization, api_key__name=KEY_NAME)
    same = same.filter(metadata__sha256=origin["sha256"]).order_by("-created_at")
    return next((batch for batch in same if batch.metadata == origin), None)


def _bar(batch: Batch) -> str:
    if batch.status == BatchStatus.VALIDATING:
        waited = (timezone.now() - batch.created_at).total_seconds()
        hint = "; is the service running (make serve)?" if waited > SAY_EVERY else ""
        return f"validating the file{hint}"
    filled = BAR * batch.done // max(1, batch.total)
    at = progress.measure_progress(batch, timezone.now())
    pace = "" if batch.has_ended or not at.lines_per_second else f", {at.lines_per_second:.1f}/s"
    left = (
        ""
        if batch.has_ended or at.seconds_left is None
        else f", {timedelta(seconds=at.seconds_left)} left"
    )
    failed = f", {batch.failed} failed" if batch.failed else ""
    bar = "#" * filled + "." * (BAR - filled)
    return f"[{bar}] {batch.done}/{batch.total}{failed}{pace}{left} ({batch.status})"


def list_faults(batch: Batch) -> str:
    faults = "\n".join(_fault(error) for error in batch.errors)
    return f"no line was run, because the file is invalid:\n{faults}"


def _fault(error: dict[str, object]) -> str:
    where = "the file" if error["line"] is None else f"line {error['line']}"
    return f"  {where}: {error['code']}: {error['message']}"


def _copy(file: File, target: Path) -> None:
    draft = target.with_name(f".{target.name}.draft")
    with file.content.open("rb") as content, draft.open("wb") as copy:
        shutil.copyfileobj(content, copy)
    draft.replace(target)
