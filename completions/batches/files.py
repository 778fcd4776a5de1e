"""Stores, reads and expires files in Django's default storage, with one row each."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import IO, Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.files import File as Content
from django.db import transaction
from django.db.models import Sum
from django.db.models.functions import Coalesce, Greatest
from django.utils import timezone

from completions.models import (
    File,
    FilePurpose,
    Organization,
    Upload,
    UploadStatus,
    path_in_storage,
)

_CHUNK = 64 * 1024
_PRUNED_AT_ONCE = 100
_RESERVED = timedelta(hours=1)
"""How long the room of a file stays reserved if its process is killed."""


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
    """Store a file that counts towards MAX_STORED_BYTES. Raises StorageLimitError.

    While it is written, an upload of its size reserves the room: other files may come meanwhile.
    """
    now = timezone.now()
    held = Upload(
        organization_id=file.organization_id,
        api_key_id=file.api_key_id,
        bytes=content.size or 0,
        file_seconds=0,
        expires_at=now + _RESERVED,
    )
    with one_at_a_time(file.organization_id):
        check_room(file.organization_id, held.bytes)
        held.save(force_insert=True)
    try:
        return store(file, content, keep)
    finally:
        held.delete()


@contextmanager
def one_at_a_time(organization_id: int) -> Iterator[None]:
    """A transaction that finds room and reserves it: those of one organization run one after
    another."""
    with transaction.atomic():
        Organization.objects.select_for_update().get(id=organization_id)
        yield


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
    """Write the content, then the row. Overwrites what a crashed attempt left behind."""
    File.objects.filter(id=file.id).delete()
    file.bytes = content.size or 0
    file.expires_at = file.created_at + keep
    file.content.storage.delete(path_in_storage(file))
    file.content.save(file.id, content, save=False)
    try:
        file.save(force_insert=True)
    except BaseException:
        file.content.delete(save=False)
        raise
    return file


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
