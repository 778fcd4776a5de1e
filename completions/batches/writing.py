"""Results become files: in input order, once, when no line runs any more."""

import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import IO

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.files import File as Content
from django.utils import timezone

from completions import files
from completions.batches import lines
from completions.models import UNFINISHED, Batch, BatchLine, File, FilePurpose, LineState

Alive = Callable[[], bool]
"""Renews the caller's right to go on; False when it has lost it."""

_ALIVE_EVERY = 1000
_DELETED_AT_ONCE = 2000


def write_files(batch: Batch, alive: Alive) -> bool:
    """Write both files, end the batch, delete its lines. False when another worker took over.

    Interrupted at any point it is repeated from the start; only the last step ends the batch.
    """
    folder = settings.FILE_UPLOAD_TEMP_DIR
    with tempfile.TemporaryFile(dir=folder) as output, tempfile.TemporaryFile(dir=folder) as errors:
        if batch.in_progress_at is not None and not _write(batch, output, errors, alive):
            return False
        store(batch, batch.output_file_id, "output", output)
        store(batch, batch.error_file_id, "errors", errors)
        Batch.objects.filter(id=batch.id).update(
            status=batch.outcome,
            total=batch.total if batch.in_progress_at else 0,
            failed=batch.total - batch.completed if batch.in_progress_at else 0,
            ended_at=timezone.now(),
        )
    delete_lines(batch)
    return True


def _write(batch: Batch, output: IO[bytes], errors: IO[bytes], alive: Alive) -> bool:
    for count, line in enumerate(lines.in_order(batch)):
        if count % _ALIVE_EVERY == 0 and not alive():
            return False
        target = output if line.state == LineState.COMPLETED else errors
        target.write(lines.output_line(batch, line))
    return True


def store(batch: Batch, file_id: str, what: str, content: IO[bytes]) -> None:
    """Keep what was written to `content`, unless that is nothing."""
    if not content.tell():
        return
    file = File(
        id=file_id,
        organization_id=batch.organization_id,
        api_key_id=batch.api_key_id,
        filename=f"{batch.id}_{what}.jsonl",
        purpose=FilePurpose.BATCH_OUTPUT,
    )
    content.seek(0)
    files.store(file, Content(content), timedelta(seconds=batch.output_seconds))


def delete_lines(batch: Batch) -> None:
    """In short transactions, so that others can write in between."""
    while found := list(batch.lines.values_list("id", flat=True)[:_DELETED_AT_ONCE]):
        BatchLine.objects.filter(id__in=found).delete()


def delete_left_lines() -> None:
    """Of batches whose writer died before it could."""
    left = BatchLine.objects.exclude(batch__status__in=UNFINISHED)
    for batch in Batch.objects.filter(id__in=left.values("batch_id")):
        delete_lines(batch)


async def read_partial(batch: Batch, answered: bool) -> AsyncIterator[bytes]:
    """What a file of a batch that has not ended would hold now, a line at a time."""
    found = lines.in_order(batch)

    def following() -> BatchLine | None:
        return next(found, None)

    while (line := await sync_to_async(following)()) is not None:
        if line.result and (line.state == LineState.COMPLETED) == answered:
            yield lines.output_line(batch, line)
