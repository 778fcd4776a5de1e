"""Stores, reads and expires files in Django's default storage, with one row each."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import IO, Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.files import File as Content
from django.db.models import Sum

from completions.models import File, FilePurpose, path_in_storage

_CHUNK = 64 * 1024
_PRUNED_AT_ONCE = 100


class StorageLimitError(Exception):
    """The files of the organization would exceed MAX_STORED_BYTES."""


def store_upload(
    content: Content[Any], filename: str, owner: tuple[int, int], keep: timedelta
) -> File:
    """Store an upload. `owner` is (organization id, key id). Raises StorageLimitError."""
    organization_id, api_key_id = owner
    uploaded = File.objects.filter(organization_id=organization_id, purpose=FilePurpose.BATCH)
    stored = uploaded.aggregate(total=Sum("bytes"))["total"] or 0
    size = content.size or 0
    if stored + size > settings.MAX_STORED_BYTES:
        raise StorageLimitError
    file = File(
        organization_id=organization_id,
        api_key_id=api_key_id,
        filename=filename,
        purpose=FilePurpose.BATCH,
    )
    return store(file, content, keep)


def store(file: File, content: Content[Any], keep: timedelta) -> File:
    """Write the content, then the row. Replaces what a crashed attempt has left."""
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


async def read(file: File) -> AsyncIterator[bytes]:
    """Yield the content in chunks, each read in a thread."""
    stream: IO[bytes] = await sync_to_async(file.content.open)("rb")
    try:
        while chunk := await sync_to_async(stream.read)(_CHUNK):
            yield chunk
    finally:
        await sync_to_async(stream.close)()


def prune(now: datetime) -> int:
    """Delete expired files. Returns how many."""
    pruned = 0
    while expired := list(File.objects.filter(expires_at__lte=now)[:_PRUNED_AT_ONCE]):
        for file in expired:
            file.delete()
        pruned += len(expired)
    return pruned
