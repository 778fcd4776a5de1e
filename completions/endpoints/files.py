"""/v1/files: upload, list, retrieve, read, delete."""

import re
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.http import StreamingHttpResponse
from django.utils import timezone
from django.utils.datastructures import MultiValueDict
from rest_framework import exceptions as drf
from rest_framework.parsers import MultiPartParser
from rest_framework.response import Response

from completions.accounts.keys import Principal
from completions.batches import files, writing
from completions.delivery import idempotency
from completions.errors import APIError, payload_too_large
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.pages import Page
from completions.models import UNFINISHED, Batch, File, FilePurpose, FileQuerySet, Scope
from completions.requests import turns

MOST_LISTED = 10_000
KEEP_SECONDS = range(3600, 2_592_000 + 1)
DEFAULT_KEEP = timedelta(seconds=KEEP_SECONDS[-1])
_PARTS = ("purpose", "file", "expires_after[anchor]", "expires_after[seconds]")


def file_object(file: File, written: bool = True) -> dict[str, Any]:
    """OpenAI's FileObject; `status` is deprecated there, but its client waits until it is
    `processed`."""
    body: dict[str, Any] = {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at.timestamp()),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed" if written else "uploaded",
    }
    if file.expires_at is not None:
        body["expires_at"] = int(file.expires_at.timestamp())
    return body


class FilesView(AsyncAPIView):
    """Upload a file, or list those there are."""

    scope = Scope.BATCHES

    parser_classes = [MultiPartParser]

    async def post(self, request: APIRequest) -> Response:
        idempotency.refuse(request)
        upload = _Upload(request.data, request.FILES)
        request.checked()  # storing may take long, but little memory
        owner = (request.auth.organization_id, request.auth.key_id)
        try:
            storing = sync_to_async(files.store_upload)(
                upload.content, upload.filename, owner, upload.keep
            )
            file = await turns.to_its_end(storing)
        except files.StorageLimitError as error:
            raise APIError(
                "storage_limit_exceeded",
                f"Your organization's files may take {settings.MAX_STORED_BYTES} bytes. "
                "Delete some first.",
                "file",
            ) from error
        return Response(file_object(file))

    async def get(self, request: APIRequest) -> Response:
        rows = _visible(request.auth)
        if (purpose := request.query_params.get("purpose")) is not None:
            rows = rows.filter(purpose=purpose)
        return Response(await Page.of(request, MOST_LISTED, MOST_LISTED).read(rows, file_object))

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, drf.UnsupportedMediaType):
            exc = APIError(
                "unsupported_media_type",
                "Send the file as multipart/form-data, with the parts purpose and file.",
            )
        return super().handle_exception(exc)


class FileView(AsyncAPIView):
    """One file's facts; or delete it."""

    scope = Scope.BATCHES

    async def get(self, request: APIRequest, file_id: str) -> Response:
        if (batch := await _being_written(file_id, request.auth)) is not None:
            return Response(file_object(writing.file_of(batch, file_id), written=False))
        return Response(file_object(await find_file(file_id, request.auth)))

    async def delete(self, request: APIRequest, file_id: str) -> Response:
        if (batch := await _being_written(file_id, request.auth)) is not None:
            raise _in_use(f"{batch.id} writes this file and has not ended. Cancel it, or wait.")
        file = await find_file(file_id, request.auth)
        reading = Batch.objects.filter(input_file_id=file_id, status__in=UNFINISHED)
        if (batch := await reading.afirst()) is not None:
            raise _in_use(
                f"{batch.id} was made of this file and has not ended. Cancel it, or wait."
            )
        await file.adelete()
        return Response({"id": file_id, "object": "file", "deleted": True})


class FileContentView(AsyncAPIView):
    """A file as it was stored, in pieces; of a batch that runs, what there is so far."""

    scope = Scope.BATCHES

    async def get(self, request: APIRequest, file_id: str) -> StreamingHttpResponse:
        if (batch := await _being_written(file_id, request.auth)) is not None:
            answered = file_id == batch.output_file_id
            name = writing.file_of(batch, file_id).filename
            return _download(writing.read_partial(batch, answered), name)
        file = await find_file(file_id, request.auth)
        response = _download(files.read(file), file.filename)
        response.headers["Content-Length"] = str(file.bytes)
        return response


def _download(content: Any, filename: str) -> StreamingHttpResponse:
    """Pieces of JSONL."""
    name = f"attachment; filename*=UTF-8''{quote(filename)}"
    headers = {"Content-Disposition": name, "X-Content-Type-Options": "nosniff"}
    return StreamingHttpResponse(content, content_type="application/jsonl", headers=headers)


async def _being_written(file_id: str, principal: Principal) -> Batch | None:
    """The unfinished batch that a file will belong to."""
    owned = Batch.objects.filter(organization_id=principal.organization_id)
    batch = await owned.filter(id=Batch.id_of_file(file_id), status__in=UNFINISHED).afirst()
    its_own = batch is not None and file_id in (batch.output_file_id, batch.error_file_id)
    return batch if its_own else None


def _in_use(message: str) -> APIError:
    return APIError("file_in_use", message, "id")


async def find_file(file_id: str, principal: Principal, param: str = "id") -> File:
    """The file, if it is this organization's and has not expired. Raises APIError."""
    asked = _visible(principal).filter(id=file_id)
    file = None if "\x00" in file_id else await asked.afirst()  # PostgreSQL would choke on it
    if file is None:
        raise APIError("file_not_found", param=param)
    return file


def _visible(principal: Principal) -> FileQuerySet:
    unexpired = File.objects.unexpired(timezone.now())
    return unexpired.filter(organization_id=principal.organization_id)


class _Upload:
    """The parts of an upload, checked. Raises APIError."""

    def __init__(self, data: Any, uploads: MultiValueDict[str, UploadedFile[Any]]) -> None:
        self._data = data
        for name in data:
            if name not in _PARTS:
                message = f"there is no such part. Send {' and '.join(_PARTS[:2])}."
                raise APIError("unknown_parameter", f"{name[:64]}: {message}", name[:64])
            if len(data.getlist(name)) > 1:
                raise APIError("invalid_value", f"{name}: send one only.", name)
        self._check_purpose()
        self.keep = self._keep()
        content = uploads.get("file")
        if content is None:
            message = "file: this part is required, with a file name."
            raise APIError("missing_required_parameter", message, "file")
        if (content.size or 0) > settings.MAX_FILE_BYTES:
            raise payload_too_large(settings.MAX_FILE_BYTES)
        self.content = content
        self.filename = re.sub(r"[\x00-\x1f\x7f]", "", content.name or "")[:255] or "file"

    def _check_purpose(self) -> None:
        purpose = self._data.get("purpose")
        if purpose is None:
            message = 'purpose: this part is required; send "batch".'
            raise APIError("missing_required_parameter", message, "purpose")
        if purpose != FilePurpose.BATCH:
            message = 'purpose: this server takes files for "batch" only.'
            raise APIError("unsupported_value", message, "purpose")

    def _keep(self) -> timedelta:
        anchor, seconds = map(self._data.get, _PARTS[2:])
        if anchor is None and seconds is None:
            return DEFAULT_KEEP
        if anchor != "created_at":
            message = f'{_PARTS[2]}: must be "created_at".'
            raise APIError("invalid_value", message, _PARTS[2])
        return timedelta(seconds=check_keep_seconds(seconds, _PARTS[3]))


def check_keep_seconds(value: Any, param: str) -> int:
    """Seconds after which a file expires, as a part of a form or a number of a JSON body."""
    digits = value if type(value) in (str, int) else ""
    if not re.fullmatch(r"\d{1,9}", str(digits)) or int(digits) not in KEEP_SECONDS:
        message = f"{param}: must be from {KEEP_SECONDS[0]} to {KEEP_SECONDS[-1]} seconds."
        raise APIError("invalid_value", message, param)
    return int(digits)
