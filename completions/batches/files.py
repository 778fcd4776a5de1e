"""Stores, reads and expires files in Django's default storage, with one row each."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import IO, Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.files import File as Content
from django.db.models import Sum
from django.db.models.functions import Coalesce, Greatest
from django.utils import timezone

from completions.models import (
    File,
    FilePurpose,
    Upload,
    UploadStatus,
    path_in_storage,
)
from completions.models.organizations import one_at_a_time

_CHUNK = 64 * 1024
_PRUNED_AT_ONCE = 100
_WRITTEN_WITHIN = timedelta(hours=1)
"""How long a file may take to be written. If its process is killed, its room stays reserved that
long."""


class StorageLimitError(Exception):
    """The files of the organization would exceed MAX_STORED_BYTES."""


def store_upload(
    content: Content[Any], filename: str, owner: tuple[int, int], keep: timedelta
) -> File:
    """Store an upload. `owner` is (organization id, key id). Raises StorageLimitError."""
    organization_id, api_key_id = owner
    file = File(
        organization_id=organization_id,
        api_key_id=api_key_id,
        filename=filename,
        purpose=FilePurpose.BATCH,
    )
    return store_within_limit(file, content, keep)


def store_within_limit(file: File, content: Content[Any], keep: timedelta) -> File:
    """Store a file that counts towards MAX_STORED_BYTES. Raises StorageLimitError."""
    size = content.size or 0
    with one_at_a_time(file.organization_id):
        check_room(file.organization_id, size)
        _begin(file, size)
    return _write(file, content, keep)


def check_room(organization_id: int, size: int) -> None:
    """Raise StorageLimitError unless `size` more bytes fit beside the organization's files and
    pending uploads."""
    files = File.objects.filter(organization_id=organization_id, purpose=FilePurpose.BATCH)
    uploads = Upload.objects.filter(organization_id=organization_id, status=UploadStatus.PENDING)
    # Parts that were sent again are stored too.
    taken = uploads.annotate(taken=Greatest("bytes", Coalesce(Sum("parts__bytes"), 0)))
    sums = files.aggregate(sum=Sum("bytes")), taken.aggregate(sum=Sum("taken"))
    stored = sum(each["sum"] or 0 for each in sums)
    if stored + size > settings.MAX_STORED_BYTES:
        raise StorageLimitError


def store(file: File, content: Content[Any], keep: timedelta) -> File:
    """Store a file. Overwrites what a crashed attempt left behind."""
    _begin(file, 0)
    return _write(file, content, keep)


def _begin(file: File, size: int) -> None:
    """Store the row before the content. It reserves the room. If the process is killed, the row
    expires, and what was written goes with it."""
    _discard(file)
    file.bytes, file.content.name = size, ""
    file.expires_at = timezone.now() + _WRITTEN_WITHIN
    file.save(force_insert=True)


def _write(file: File, content: Content[Any], keep: timedelta) -> File:
    """Store the content of a file that was begun. Raises File.DoesNotExist if its row was deleted
    meanwhile."""
    try:
        file.content.storage.delete(path_in_storage(file))
        file.content.save(file.id, content, save=False)
        file.bytes, file.expires_at = content.size or 0, file.created_at + keep
        written = {name: getattr(file, name) for name in ("content", "bytes", "expires_at")}
        if not File.objects.filter(id=file.id).update(**written):
            file.content.delete(save=False)
            raise File.DoesNotExist(f"{file.id} was deleted while it was written")
    except BaseException:
        _discard(file)
        raise
    return file


def _discard(file: File) -> None:
    """Delete the row, and the content with it."""
    File.objects.filter(id=file.id).delete()


async def read(file: File, start: int = 0) -> AsyncIterator[bytes]:
    """Yield the content from byte `start` on in chunks, each read in a thread."""
    stream: IO[bytes] = await sync_to_async(file.content.open)("rb")
    try:
        await sync_to_async(stream.seek)(start)
        while chunk := await sync_to_async(stream.read)(_CHUNK):
            yield chunk
    finally:
        await sync_to_async(stream.close)()


def prune(now: datetime) -> int:
    """Delete expired files. Returns their number."""
    pruned = 0
    while expired := list(File.objects.filter(expires_at__lte=now)[:_PRUNED_AT_ONCE]):
        for file in expired:
            file.delete()
        pruned += len(expired)
    return pruned
