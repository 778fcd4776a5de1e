"""Creates a new batch from lines of another: those that failed, or any."""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import IO

from django.conf import settings
from django.core.files import File as Content
from django.db import close_old_connections

from completions.batches import files
from completions.batches.input_lines import decode_line, split_lines
from completions.contract.strict_json import escape_line_breaks
from completions.models import Batch, BatchStatus, File

_CLOSED = (BatchStatus.CANCELLED, BatchStatus.EXPIRED)


def can_resubmit(batch: Batch) -> bool:
    """Return whether a batch has ended with lines that were not answered."""
    return batch.has_ended and (batch.failed > 0 or _has_ended_in_validation(batch))


def estimate_cost(batch: Batch, lines: int, spent: int) -> int | None:
    """Return what `lines` of a batch that spent `spent` cost on average, both in billionths; None
    before one has an answer."""
    return spent * lines // batch.completed if batch.completed else None


def _has_ended_in_validation(batch: Batch) -> bool:
    """Return whether a batch was cancelled, or its window closed, before any line could run."""
    return batch.in_progress_at is None and batch.status in _CLOSED


def prepare(batch: Batch, now: datetime) -> tuple[Batch, File]:
    """Return an unsaved batch and its stored input file.

    The input has the lines named in the error file, as they were sent; all lines of a batch that
    ended during its validation. Raises File.DoesNotExist, files.StorageLimitError and
    files.FileLostError.
    """
    inputs = File.objects.readable(now)
    sent = inputs.get(id=batch.input_file_id)
    if _has_ended_in_validation(batch):
        close_old_connections()  # of this thread: others need it while the files are read
        with files.open_file(sent) as content:
            return copy_batch(batch, split_lines(content))
    failed = inputs.get(id=batch.error_file_id)
    close_old_connections()
    with files.open_file(failed) as content:
        custom_ids = {json.loads(line)["custom_id"] for line in split_lines(content)}
    with files.open_file(sent) as content:
        return copy_batch(batch, _choose_lines(content, custom_ids))


def copy_batch(batch: Batch, sent: Iterable[bytes]) -> tuple[Batch, File]:
    """Return an unsaved batch like this one, and its stored input file with these lines.
    Raises files.StorageLimitError and files.FileLostError."""
    with tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR) as draft:
        draft.writelines(sent)
        draft.seek(0)  # flushes: the size is read from disk
        content: Content[bytes] = Content(draft)
        content.size = os.fstat(draft.fileno()).st_size
        owner = batch.organization_id, batch.api_key_id
        keep = timedelta(seconds=batch.output_seconds)
        file = files.store_upload(content, f"{batch.id}_again.jsonl", owner, keep)
    new = Batch(
        endpoint=batch.endpoint,
        completion_window=batch.completion_window,
        output_seconds=batch.output_seconds,
        metadata=batch.metadata,
        on_invalid=batch.on_invalid,
        on_late=batch.on_late,
        receipts=batch.receipts,
        close=batch.close,
        resubmission_of=batch.id,
    )
    return new, file


def _choose_lines(content: IO[bytes], custom_ids: set[str]) -> Iterator[bytes]:
    for line in split_lines(content):
        text = decode_line(line)
        if text and json.loads(text)["custom_id"] in custom_ids:
            yield escape_line_breaks(text.encode()) + b"\n"
