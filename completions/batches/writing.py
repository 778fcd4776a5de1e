"""Writes a batch's files, in input order, once all its lines have ended."""

import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta
from typing import IO

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.files import File as Content
from django.utils import timezone

from completions.batches import files, lines
from completions.batches.input_lines import split_lines
from completions.batches.results.index import Index
from completions.batches.summary import Summary
from completions.database.parts import parts
from completions.database.release import release
from completions.models import UNFINISHED, Batch, BatchLine, File, FilePurpose, LineState

logger = logging.getLogger(__name__)

Alive = Callable[[], bool]
"""Returns False once the caller has lost its lock and must stop."""

_ALIVE_EVERY = 1000
_DELETE_BATCH_SIZE = 2000


def write_files(batch: Batch, alive: Alive) -> bool:
    """Write both files and their index, end the batch and delete its lines.

    Returns False if another worker took over, or a file took too long. An interrupted run is
    repeated from the start, because only the last step ends the batch. The files are final: a later
    result is dropped.
    """
    folder = settings.FILE_UPLOAD_TEMP_DIR
    with tempfile.TemporaryFile(dir=folder) as output, tempfile.TemporaryFile(dir=folder) as errors:
        completed = total = 0
        summary, index = Summary(batch.counted_fields), Index()
        for line in lines.iterate_lines(batch) if batch.in_progress_at else ():
            if total % _ALIVE_EVERY == 0 and not alive():
                return False
            answered = line.state == LineState.COMPLETED
            result = lines.read_result(batch, line)
            content = output if answered else errors
            text = lines.output_line(batch, line, result)
            index.add(line.number, answered, result, content.tell(), len(text))
            content.write(text)
            summary.add(result)
            completed += answered
            total += 1
        if not alive():  # the other worker may have stored the files already
            return False
        ended_at = timezone.now()
        try:
            store(batch, batch.output_file_id, output, ended_at)
            store(batch, batch.error_file_id, errors, ended_at)
        except files.FileLostError as error:
            logger.warning("%s is repeated: %s", batch.id, error)
            return False
        if not index.store(batch, alive):
            return False
        Batch.objects.filter(id=batch.id).update(
            status=batch.outcome,
            total=total,
            completed=completed,
            failed=total - completed,
            summary=summary.as_dict(),
            ended_at=ended_at,
        )
    delete_lines(batch)
    return True


def store(batch: Batch, file_id: str, content: IO[bytes], ended_at: datetime) -> None:
    """Store what was written to `content`, if anything. `ended_at` becomes that of the batch too,
    so that a list finds the time of a deleted file. Raises files.FileLostError."""
    if content.tell():
        file = make_file(batch, file_id)
        file.created_at = ended_at
        content.seek(0)
        files.store(file, Content(content), timedelta(seconds=batch.output_seconds))


def make_file(batch: Batch, file_id: str) -> File:
    what = "output" if file_id == batch.output_file_id else "errors"
    return File(
        id=file_id,
        organization_id=batch.organization_id,
        api_key_id=batch.api_key_id,
        filename=f"{batch.id}_{what}.jsonl",
        purpose=FilePurpose.BATCH_OUTPUT,
        bytes=0,
        created_at=batch.in_progress_at or batch.created_at,
    )


def delete_lines(batch: Batch) -> None:
    """Delete the lines in short transactions, so that other writers can run in between."""
    while ids := list(batch.lines.values_list("id", flat=True)[:_DELETE_BATCH_SIZE]):
        BatchLine.objects.filter(id__in=ids).delete()


def delete_left_lines() -> None:
    """Delete the lines of ended batches, which a crashed writer may leave behind."""
    left = BatchLine.objects.exclude(batch__status__in=UNFINISHED)
    for batch in Batch.objects.filter(id__in=left.values("batch_id")):
        delete_lines(batch)


async def read_partial(batch: Batch, answered: bool) -> AsyncIterator[bytes]:
    """Yield what a file of an unfinished batch would hold now.

    If the batch ends in the meantime, the rest is read from the file.
    """
    number = 0
    while (page := await sync_to_async(_results)(batch, answered, number)) is not None:
        text, last = page
        if last == number:
            return
        if text:
            await release()
            yield text
        number = last
    rest = map(b"".join, parts(_read_stored(batch, answered, number), lines.BATCH_SIZE))
    while piece := await files.read_next_piece(rest):
        await release()
        yield piece


def _results(batch: Batch, answered: bool, number: int) -> tuple[bytes, int] | None:
    """Return the output for the next lines after this number, and the number of the last of them;
    None if the batch has ended."""
    page = lines.read_next_lines(batch, number)
    # Rows are deleted after the end, so rows read before it are complete.
    if not Batch.objects.filter(id=batch.id, status__in=UNFINISHED).exists():
        return None
    text = b"".join(
        lines.output_line(batch, line, lines.read_result(batch, line))
        for line in page
        if line.result and (line.state == LineState.COMPLETED) == answered
    )
    return text, page[-1].number if page else number


def _read_stored(batch: Batch, answered: bool, number: int) -> Iterator[bytes]:
    """Yield later lines of the stored file. Raises File.DoesNotExist."""
    ended = Batch.objects.get(id=batch.id)
    if not (ended.completed if answered else ended.failed):
        return
    file = File.objects.get(id=batch.output_file_id if answered else batch.error_file_id)
    with file.content.open("rb") as content:
        for text in split_lines(content):
            if lines.parse_line_number(text) > number:
                yield text
