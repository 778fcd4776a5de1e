"""Files that are uploaded in parts: begin, add, complete, cancel, expire."""

import hashlib
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.core.files import File as Content
from django.db import close_old_connections
from django.db.models import Count, Sum

from completions.batches import files
from completions.exceptions import FieldError
from completions.models import File, Upload, UploadPart, UploadStatus, path_of_part
from completions.models.organizations import lock_organization

OPEN_FOR = timedelta(hours=24)
"""Long enough to continue after a break of one night."""
MAX_PARTS = 10_000
_LEFT_AFTER = timedelta(days=1)
"""The age of a body that no request can have any more."""
_CHUNK = 1024 * 1024


class NotPendingError(Exception):
    """The upload was completed or cancelled, or it has expired."""


def begin(upload: Upload) -> None:
    """Store a new upload. Raises files.StorageLimitError."""
    upload.expires_at = upload.created_at + OPEN_FOR
    with lock_organization(upload.organization_id):
        files.check_room(upload.organization_id, upload.bytes)
        upload.save(force_insert=True)


def add(upload: Upload, content: Content[bytes]) -> UploadPart:
    """Store a part. Raises FieldError when the parts are too many, or have more than twice the
    bytes of the file: a client sends a part again if it does not get the answer. Raises
    files.StorageLimitError when such repetitions find no room, and NotPendingError if the upload
    ended meanwhile."""
    part = UploadPart(upload=upload, bytes=content.size or 0)
    part.content.name = path_of_part(part)
    # The row comes before the content: it reserves the room, and whatever ends the upload deletes
    # both.
    with lock_organization(upload.organization_id):
        _require_room(upload, part)
        part.save(force_insert=True)
    close_old_connections()  # of this thread: others need it while the content is written
    try:
        part.content.storage.save(path_of_part(part), content)
    except BaseException:
        part.delete()
        raise
    if not UploadPart.objects.filter(id=part.id).exists():
        part.content.storage.delete(path_of_part(part))
        raise NotPendingError
    return part


def _require_room(upload: Upload, part: UploadPart) -> None:
    if not _is_pending(upload):
        raise NotPendingError
    stored = upload.parts.aggregate(bytes=Sum("bytes"), count=Count("id"))
    there = stored["bytes"] or 0
    if stored["count"] >= MAX_PARTS:  # each is a file, however small
        message = f"this upload has {MAX_PARTS} parts, and takes no more. Send larger ones."
        raise FieldError(message, "data")
    if there + part.bytes > 2 * upload.bytes:
        message = (
            f"{part.bytes} bytes are too many: the parts so far have {there}, the file will have "
            f"{upload.bytes}. Begin another upload."
        )
        raise FieldError(message, "data")
    if more := max(0, there + part.bytes - max(there, upload.bytes)):
        files.check_room(upload.organization_id, more, number=0)


def complete(upload: Upload, part_ids: Sequence[str], md5: str | None) -> None:
    """Assemble the file from the parts in this order, unless the upload ends in the meantime.
    Raises FieldError, or NotPendingError if it had ended. Repeated or concurrent calls create only
    one file.

    Raises FieldError, or NotPendingError if it had ended. Repeated or concurrent calls create only
    one file.
    """
    try:
        file = _join(upload, _order_parts(upload, part_ids), md5)
    except FileNotFoundError as error:  # the upload ended, and its parts are deleted
        if _is_pending(upload):
            raise
        raise NotPendingError from error
    if not _end(upload, UploadStatus.COMPLETED, file):
        file.delete()  # another call was first


def _join(upload: Upload, parts: Sequence[UploadPart], md5: str | None) -> File:
    """Store the file of these parts. Raises FieldError for another MD5."""
    close_old_connections()  # of this thread: others need it while the parts are read
    with tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR) as whole:
        digest = hashlib.md5(usedforsecurity=False)
        for part in parts:
            with part.content.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    whole.write(chunk)
        if md5 is not None and digest.hexdigest() != md5.lower():
            raise FieldError(f"the file's MD5 is {digest.hexdigest()}, not {md5}.", "md5")
        whole.seek(0)
        file = files.make_upload((upload.organization_id, upload.api_key_id), upload.filename)
        content: Content[bytes] = Content(whole)
        content.size = upload.bytes
        return files.store(file, content, timedelta(seconds=upload.file_seconds))


def cancel(upload: Upload) -> None:
    """Cancel a pending upload, and delete its parts. Uploads in other states do not change."""
    _end(upload, UploadStatus.CANCELLED)


def prune(now: datetime) -> int:
    """Delete expired uploads, with the parts of those never completed."""
    return Upload.objects.filter(expires_at__lte=now).delete()[0]


def prune_left(now: datetime) -> int:
    """Delete the bodies that a killed web process was parsing. Returns their number."""
    last, pruned = (now - _LEFT_AFTER).timestamp(), 0
    for path in Path(settings.FILE_UPLOAD_TEMP_DIR).glob("*.upload"):
        with suppress(FileNotFoundError):  # its request has ended meanwhile
            if path.stat().st_mtime < last:
                path.unlink()
                pruned += 1
    return pruned


def _end(upload: Upload, status: UploadStatus, file: File | None = None) -> bool:
    pending = Upload.objects.filter(id=upload.id, status=UploadStatus.PENDING)
    with lock_organization(
        upload.organization_id
    ):  # no part may come between its check and its row
        ended = bool(pending.update(status=status, file=file))
    if ended:
        upload.parts.all().delete()
    return ended


def _is_pending(upload: Upload) -> bool:
    """Return whether the upload is pending now, whatever it was when it was read."""
    return Upload.objects.filter(id=upload.id, status=UploadStatus.PENDING).exists()


def _order_parts(upload: Upload, part_ids: Sequence[str]) -> list[UploadPart]:
    """Return the parts with these ids, which must make up the whole file. Raises FieldError."""
    by_id = {part.id: part for part in upload.parts.all()}
    if not by_id and not _is_pending(upload):
        raise NotPendingError
    parts = []
    for part_id in part_ids:
        if (part := by_id.pop(part_id, None)) is None:
            message = f"{part_id[:64]} is not a part of this upload, or is named twice."
            raise FieldError(message, "part_ids")
        parts.append(part)
    size = sum(part.bytes for part in parts)
    if size != upload.bytes:
        message = f"these parts have {size} bytes in all, not the {upload.bytes} of the upload."
        raise FieldError(message, "part_ids")
    return parts
