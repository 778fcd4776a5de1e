"""/v1/files: upload, list, get, read, delete."""

import re
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.http import StreamingHttpResponse
from django.utils import timezone

from completions.accounts.keys import Principal
from completions.batches import files, writing
from completions.database.release import release
from completions.delivery import rate_limits
from completions.delivery.preferences import refuse_idempotency_key
from completions.exceptions import APIError, payload_too_large
from completions.http.base import APIRequest, AsyncAPIView, MultiPartAPIView
from completions.http.bodies import JSONResponse
from completions.http.pages import Page
from completions.models import UNFINISHED, Batch, File, FilePurpose, FileQuerySet, Scope
from completions.models.files import FILE_ID
from completions.models.timed_ids import read_time
from completions.requests import fair_semaphore
from completions.requests.fields.base import ChoiceField, IntegerField
from completions.requests.fields.objects import StrictObject

MAX_PAGE_SIZE = 10_000
KEEP_SECONDS = range(3600, 2_592_000 + 1)
DEFAULT_KEEP = timedelta(seconds=KEEP_SECONDS[-1])
_PARTS = ("purpose", "file", "expires_after[anchor]", "expires_after[seconds]")


class ExpiresAfterObject(StrictObject["ExpiresAfterObject | None"]):
    anchor = ChoiceField(
        "The time from which the seconds count: when the file is created.",
        choices=["created_at"],
        required=True,
    )
    seconds = IntegerField(
        "How long the file is kept.",
        min_value=KEEP_SECONDS[0],
        max_value=KEEP_SECONDS[-1],
        required=True,
    )


def make_file_object(file: File, is_written: bool = True) -> dict[str, object]:
    """Return OpenAI's FileObject. OpenAI's client waits until the deprecated `status` is
    `processed`."""
    body: dict[str, object] = {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at.timestamp()),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed" if is_written else "uploaded",
    }
    if file.expires_at is not None:
        body["expires_at"] = int(file.expires_at.timestamp())
    return body


def make_storage_error(error: files.StorageLimitError, param: str) -> APIError:
    return APIError("storage_limit_exceeded", f"{error} Delete some first.", param)


class FilesView(MultiPartAPIView):
    """Upload a file, or list the organization's files."""

    scope = Scope.BATCHES
    wanted = "the parts purpose and file"

    async def post(self, request: APIRequest) -> JSONResponse:
        refuse_idempotency_key(request)
        self.headers.update(await rate_limits.count_request(request.process, request.auth))
        upload = _Upload.parse(request)
        request.start_check()  # storing may take long, but little memory
        owner = (request.auth.organization_id, request.auth.key_id)
        try:
            storing = sync_to_async(files.store_upload)(
                upload.content, upload.filename, owner, upload.keep
            )
            file = await fair_semaphore.to_its_end(storing)
        except files.StorageLimitError as error:
            raise make_storage_error(error, "file") from error
        return JSONResponse(make_file_object(file))

    async def get(self, request: APIRequest) -> JSONResponse:
        rows = _list_visible(request.auth)
        if (purpose := request.query_params.get("purpose")) is not None:
            rows = rows.filter(purpose=purpose)
        page = Page.parse(request, MAX_PAGE_SIZE, MAX_PAGE_SIZE, ["purpose"])

        async def find_time(file_id: str) -> datetime | None:
            return await _find_created_at(file_id, request.auth)

        return JSONResponse(await page.read(rows, make_file_object, find_time))


class FileView(AsyncAPIView):
    """Get a file's metadata, or delete the file."""

    scope = Scope.BATCHES

    async def get(self, request: APIRequest, file_id: str) -> JSONResponse:
        if (batch := await _find_writer(file_id, request.auth)) is not None:
            return JSONResponse(
                make_file_object(writing.make_file(batch, file_id), is_written=False)
            )
        return JSONResponse(make_file_object(await find_file(file_id, request.auth)))

    async def delete(self, request: APIRequest, file_id: str) -> JSONResponse:
        if (batch := await _find_writer(file_id, request.auth)) is not None:
            message = f"{batch.id} writes this file and has not ended. Cancel it, or wait."
            raise APIError("file_in_use", message, "id")
        file = await find_file(file_id, request.auth)
        reading = Batch.objects.filter(input_file_id=file_id, status__in=UNFINISHED)
        if (batch := await reading.afirst()) is not None:
            message = f"{batch.id} reads this file and has not ended. Cancel it, or wait."
            raise APIError("file_in_use", message, "id")
        await file.adelete()
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})


class FileContentView(AsyncAPIView):
    """Stream a file, or its end from a byte on. While its batch runs, stream the results so far."""

    scope = Scope.BATCHES

    async def get(self, request: APIRequest, file_id: str) -> StreamingHttpResponse:
        if (batch := await _find_writer(file_id, request.auth)) is not None:
            answered = file_id == batch.output_file_id
            name = writing.make_file(batch, file_id).filename
            await release()
            return _download(writing.read_partial(batch, answered), name)
        file = await find_file(file_id, request.auth)
        if not await sync_to_async(file.content.storage.exists)(str(file.content.name)):
            raise APIError("file_not_found", "The content of this file is lost.", "id")
        await release()
        start = _start(request, file)
        response = _download(files.read(file, start or 0), file.filename)
        response.headers["Content-Length"] = str(file.bytes - (start or 0))
        response.headers["Accept-Ranges"] = "bytes"
        response.headers["ETag"] = f'"{file.id}"'
        if start is not None:
            response.status_code = HTTPStatus.PARTIAL_CONTENT
            response.headers["Content-Range"] = f"bytes {start}-{file.bytes - 1}/{file.bytes}"
        return response


def _start(request: APIRequest, file: File) -> int | None:
    """Return the first byte that `Range: bytes=N-` asks for; None for the whole file. Other ranges
    are ignored, as RFC 9110, section 14.2, allows. Raises APIError for a start beyond the end."""
    match = re.fullmatch(r"bytes=([0-9]{1,18})-", request.headers.get("Range", ""))
    if match is None or request.headers.get("If-Range") not in (None, f'"{file.id}"'):
        return None
    if int(match[1]) >= file.bytes:
        message = f"The file has {file.bytes} bytes; {match[0]} begins after its end."
        raise APIError("range_not_satisfiable", message, "Range")
    return int(match[1])


def _download(content: Any, filename: str) -> StreamingHttpResponse:
    """Make a response of pieces of JSONL."""
    name = f"attachment; filename*=UTF-8''{quote(filename)}"
    headers = {"Content-Disposition": name, "X-Content-Type-Options": "nosniff"}
    return StreamingHttpResponse(content, content_type="application/jsonl", headers=headers)


async def _find_writer(file_id: str, principal: Principal) -> Batch | None:
    """Return the unfinished batch that a file will belong to."""
    owned = Batch.objects.filter(organization_id=principal.organization_id)
    batch = await owned.filter(id=Batch.parse_file_id(file_id), status__in=UNFINISHED).afirst()
    its_own = batch is not None and file_id in (batch.output_file_id, batch.error_file_id)
    return batch if its_own else None


async def _find_created_at(file_id: str, principal: Principal) -> datetime | None:
    """Return when a missing file was created. The id of an output file is that of its batch."""
    if (at := read_time(file_id)) is not None:
        return at if file_id.startswith(FILE_ID) else None
    owned = Batch.objects.filter(organization_id=principal.organization_id)
    batch = await owned.filter(id=Batch.parse_file_id(file_id)).afirst()
    return batch.ended_at if batch else None


async def find_file(file_id: str, principal: Principal, param: str = "id") -> File:
    """Return the file, if it is this organization's and has not expired. Raises APIError."""
    matches = _list_visible(principal).filter(id=file_id)
    file = None if "\x00" in file_id else await matches.afirst()  # PostgreSQL refuses U+0000
    if file is None:
        raise APIError("file_not_found", param=param)
    return file


def _list_visible(principal: Principal) -> FileQuerySet:
    readable = File.objects.readable(timezone.now())
    return readable.filter(organization_id=principal.organization_id)


class _Upload(NamedTuple):
    """The parts of a multipart upload."""

    content: UploadedFile[bytes]
    filename: str
    keep: timedelta

    @classmethod
    def parse(cls, request: APIRequest) -> "_Upload":
        """Check the parts. Raises APIError."""
        data: Any = request.data
        for name in data:
            if name not in _PARTS:
                message = f"there is no such part. Send {' and '.join(_PARTS[:2])}."
                raise APIError("unknown_parameter", f"{name[:64]}: {message}", name[:64])
            if len(data.getlist(name)) > 1:
                raise APIError("invalid_value", f"{name}: send one only.", name)
        if (purpose := data.get("purpose")) is None:
            message = 'purpose: this part is required; send "batch".'
            raise APIError("missing_required_parameter", message, "purpose")
        if purpose != FilePurpose.BATCH:
            message = 'purpose: this server takes files for "batch" only.'
            raise APIError("unsupported_value", message, "purpose")
        keep = _parse_retention(*map(data.get, _PARTS[2:]))
        content = request.FILES.get("file")
        if content is None:
            message = "file: this part is required, with a file name."
            raise APIError("missing_required_parameter", message, "file")
        if (content.size or 0) > settings.MAX_FILE_BYTES:
            raise payload_too_large(settings.MAX_FILE_BYTES)
        return cls(content, content.name or "", keep)


def _parse_retention(anchor: object, seconds: object) -> timedelta:
    if anchor is None and seconds is None:
        return DEFAULT_KEEP
    if anchor != "created_at":
        raise APIError("invalid_value", f'{_PARTS[2]}: must be "created_at".', _PARTS[2])
    text = str(seconds)
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) not in KEEP_SECONDS:
        message = f"{_PARTS[3]}: must be from {KEEP_SECONDS[0]} to {KEEP_SECONDS[-1]} seconds."
        raise APIError("invalid_value", message, _PARTS[3])
    return timedelta(seconds=int(text))
