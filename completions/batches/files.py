"""Stores, reads and expires files in Django's default storage, with one row each."""

import logging
import re
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import IO

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.files import File as Content
from django.db import close_old_connections, transaction
from django.db.models import QuerySet, Sum
from django.db.models.functions import Coalesce, Greatest
from django.utils import timezone

from completions.models import (
    Conversation,
    File,
    FilePurpose,
    Session,
    Upload,
    UploadStatus,
    path_in_storage,
)
from completions.models.files import FILE_ID
from completions.models.organizations import lock_organization
from completions.models.timed_ids import new_id

logger = logging.getLogger(__name__)

MAX_NAME = 255
"""Characters."""
_NOT_IN_NAMES = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029"  # controls and line breaks
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # Unicode's property Bidi_Control
)
_CHUNK = 64 * 1024
_PRUNE_BATCH_SIZE = 100
_WRITTEN_WITHIN = timedelta(hours=1)
"""How long a file may take to be written. If its process is killed, its room stays reserved that
long."""


class StorageLimitError(Exception):
    """The files of the organization would exceed MAX_STORED_BYTES or MAX_STORED_FILES."""


class FileLostError(Exception):
    """The row of a file was deleted or replaced while its content was written."""

    def __init__(self, file_id: str) -> None:
        hours = _WRITTEN_WITHIN // timedelta(hours=1)
        super().__init__(
            f"{file_id} was not stored: writing it took longer than {hours} h, or it was deleted "
            "meanwhile."
        )


def store_upload(
    content: Content[bytes], filename: str, owner: tuple[int, int], keep: timedelta
) -> File:
    """Store an upload, which counts towards MAX_STORED_BYTES. `owner` is (organization id, key id).
    Raises StorageLimitError and FileLostError."""
    file = make_upload(owner, filename)
    size = content.size or 0
    with lock_organization(file.organization_id):
        check_room(file.organization_id, size)
        _begin(file, size)
    return _write(file, content, keep)


def clean_name(text: str) -> str:
    """Return a file's name without control characters, line breaks and the marks that change the
    direction of text: with these, a name looks like another one."""
    return _NOT_IN_NAMES.sub("", text)[:MAX_NAME] or "file"


def make_upload(owner: tuple[int, int], filename: str) -> File:
    """Make the row of a file of requests that is not stored yet. `owner` is (organization id, key
    id)."""
    organization_id, api_key_id = owner
    now = timezone.now()
    return File(
        id=new_id(FILE_ID, now),
        created_at=now,
        organization_id=organization_id,
        api_key_id=api_key_id,
        filename=clean_name(filename),
        purpose=FilePurpose.BATCH,
    )


_SESSION_BYTES = 1024
"""What a session takes without turns, which bounds their number."""


def check_room(organization_id: int, size: int, number: int = 1) -> None:
    """Raise StorageLimitError unless `number` files with `size` bytes in all fit beside the files,
    pending uploads, sessions and conversations of the organization, which the transaction must lock
    to be exact."""
    files = File.objects.filter(organization_id=organization_id, purpose=FilePurpose.BATCH)
    uploads = Upload.objects.filter(organization_id=organization_id, status=UploadStatus.PENDING)
    if number and files.count() + uploads.count() + number > settings.MAX_STORED_FILES:
        raise StorageLimitError(f"Your organization may have {settings.MAX_STORED_FILES} files.")
    # Parts that were sent again are stored too.
    taken = uploads.annotate(taken=Greatest("bytes", Coalesce(Sum("parts__bytes"), 0)))
    sessions = Session.objects.filter(organization_id=organization_id)
    conversations = Conversation.objects.filter(organization_id=organization_id)
    rows = (files, "bytes"), (taken, "taken"), (sessions, "bytes"), (conversations, "bytes")
    stored = sum(each.aggregate(sum=Sum(column))["sum"] or 0 for each, column in rows)
    stored += sessions.count() * _SESSION_BYTES
    if stored + size > settings.MAX_STORED_BYTES:
        raise StorageLimitError(
            "Your organization's files, sessions and conversations may take "
            f"{settings.MAX_STORED_BYTES} bytes."
        )


def store(file: File, content: Content[bytes], keep: timedelta) -> File:
    """Store a file. Overwrites what a crashed attempt left behind, and takes the file from a writer
    that still runs. Raises FileLostError."""
    _delete(File.objects.filter(id=file.id))
    file.content.storage.delete(path_in_storage(file))
    _begin(file, 0)
    return _write(file, content, keep)


def _begin(file: File, size: int) -> None:
    """Store the row before the content. It reserves the room. If the process is killed, the row
    expires, and what was written goes with it."""
    file.bytes, file.content.name = size, ""
    file.expires_at = timezone.now() + _WRITTEN_WITHIN
    file.save(force_insert=True)


def _write(file: File, content: Content[bytes], keep: timedelta) -> File:
    """Store the content of a file that was begun. Raises FileLostError."""
    # Another writer of the same id has another time in its row.
    mine = File.objects.filter(id=file.id, content="", expires_at=file.expires_at)
    close_old_connections()  # of this thread: others need it while the content is written
    try:
        file.content.save(file.id, content, save=False)
        file.bytes, file.expires_at = content.size or 0, file.created_at + keep
        values = {name: getattr(file, name) for name in ("content", "bytes", "expires_at")}
        if not mine.update(**values):
            _delete_unowned(file)
            raise FileLostError(file.id)
    except BaseException:
        _delete(mine)  # the row that this writer began, and the content with it
        raise
    return file


def _delete_unowned(file: File) -> None:
    """Delete the content of a file whose row is lost. Skip it if its path is the plain one and
    another writer's row exists: that row may own it."""
    is_own = file.content.name != path_in_storage(file)
    if is_own or not File.objects.filter(id=file.id).exists():
        file.content.delete(save=False)


def _delete(files: QuerySet[File]) -> int:
    """Delete these files. Returns their number. The rows are locked, because QuerySet.delete()
    deletes by id what it has read, even if a writer has changed it meanwhile."""
    with transaction.atomic():
        rows = list(files.select_for_update())
        for file in rows:
            file.delete()
    return len(rows)


def open_file(file: File) -> IO[bytes]:
    """Open a file for reading. Raises File.DoesNotExist if the storage lost it."""
    try:
        content: IO[bytes] = file.content.open("rb")
    except FileNotFoundError as error:
        logger.error("the storage has no content of %s", file.id)
        raise File.DoesNotExist(f"{file.id} has no content") from error
    return content


async def read(file: File, start: int = 0) -> AsyncIterator[bytes]:
    """Yield the content from byte `start` on in chunks, each read in a thread."""
    stream = await sync_to_async(open_file)(file)
    try:
        await sync_to_async(stream.seek)(start)
        while chunk := await sync_to_async(stream.read)(_CHUNK):
            yield chunk
    finally:
        await sync_to_async(stream.close)()


async def read_next_piece(pieces: Iterator[bytes]) -> bytes:
    """Read the next piece of a file in a thread; empty after the last one."""
    return await sync_to_async(lambda: next(pieces, b""))()


def prune(now: datetime) -> int:
    """Delete expired files. Returns their number."""
    pruned = 0
    expired = File.objects.filter(expires_at__lte=now)
    while ids := list(expired.values_list("id", flat=True)[:_PRUNE_BATCH_SIZE]):
        # One by one: a file that was written meanwhile is no longer expired.
        pruned += sum(_delete(expired.filter(id=file_id)) for file_id in ids)
    return pruned
