"""Requests that come with the call that creates their batch: written as the file they would be."""

import tempfile
from collections.abc import Iterable, Mapping
from datetime import timedelta

from django.conf import settings
from django.core.files import File as Content

from completions.batches import files, input_lines
from completions.batches.input_lines import LineError
from completions.contract.strict_json import encode_line
from completions.models import File

FILENAME = "requests.jsonl"


class InlineRequestError(Exception):
    """A request is no line of a batch."""

    def __init__(self, index: int, error: LineError) -> None:
        super().__init__(error.message)
        self.code = error.code
        self.param = f"requests[{index}]" + (f".{error.param}" if error.param else "")
        self.message = f"requests[{index}]: {error.message}"


def store(
    requests: Iterable[Mapping[str, object]], endpoint: str, owner: tuple[int, int], keep: timedelta
) -> File:
    """Store the file of these requests. `owner` is (organization id, key id). Raises
    InlineRequestError, files.StorageLimitError and files.FileLostError."""
    with tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR) as draft:
        for index, request in enumerate(requests):
            usual = {"custom_id": f"request-{index + 1}", "method": "POST", "url": endpoint}
            line = encode_line({**usual, **request})
            try:
                input_lines.parse(line, endpoint)
            except LineError as error:
                raise InlineRequestError(index, error) from error
            draft.write(line + b"\n")
        size = draft.tell()
        draft.seek(0)  # flushes
        content: Content[bytes] = Content(draft)
        content.size = size
        return files.store_upload(content, FILENAME, owner, keep)
