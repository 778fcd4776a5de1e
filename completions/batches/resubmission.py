"""Creates a new batch from the failed lines of another."""

import json
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import IO

from django.conf import settings
from django.core.files import File as Content

from completions.batches import files
from completions.models import Batch, File, FilePurpose


def prepare(batch: Batch, now: datetime) -> tuple[Batch, File]:
    """Return an unsaved batch and its stored input file.

    The input has the lines named in the error file, as they were sent. Raises File.DoesNotExist.
    """
    inputs = File.objects.unexpired(now)
    sent, failed = inputs.get(id=batch.input_file_id), inputs.get(id=batch.error_file_id)
    with failed.content.open("rb") as content:
        wanted = {json.loads(line)["custom_id"] for line in content}
    with tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR) as draft:
        with sent.content.open("rb") as content:
            draft.writelines(_chosen(content, wanted))
        file = File(
            organization_id=batch.organization_id,
            api_key_id=batch.api_key_id,
            filename=f"{batch.id}_again.jsonl",
            purpose=FilePurpose.BATCH,
        )
        files.store(file, Content(draft), timedelta(seconds=batch.output_seconds))
    again = Batch(
        endpoint=batch.endpoint,
        completion_window=batch.completion_window,
        output_seconds=batch.output_seconds,
        metadata=batch.metadata,
        resubmission_of=batch.id,
    )
    return again, file


def _chosen(content: IO[bytes], custom_ids: set[str]) -> Iterator[bytes]:
    for line in content:
        text = line.decode("utf-8-sig").strip()
        if text and json.loads(text)["custom_id"] in custom_ids:
            yield text.encode() + b"\n"
