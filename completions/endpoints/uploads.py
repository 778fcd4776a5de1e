"""/v1/uploads: upload a file in parts, as in OpenAI's Uploads API."""

from typing import Any, Self

from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone

from completions.batches import files, uploads
from completions.database.release import release
from completions.delivery import rate_limits
from completions.delivery.preferences import refuse_idempotency_key
from completions.endpoints.files import (
    DEFAULT_KEEP,
    ExpiresAfterObject,
    make_file_object,
    make_storage_error,
)
from completions.exceptions import APIError, FieldError, payload_too_large
from completions.http.base import APIRequest, AsyncAPIView, MultiPartAPIView
from completions.http.bodies import JSONResponse
from completions.models import FilePurpose, Scope, Upload, UploadPart, UploadStatus
from completions.requests import fair_semaphore
from completions.requests.fields.base import ChoiceField, IntegerField, TextField
from completions.requests.fields.lists import ListField
from completions.requests.fields.objects import StrictObject

MAX_PART_BYTES = 64 * 1024 * 1024
"""OpenAI's limit, and the size of a part that its client sends."""


class UploadRequestObject(StrictObject[object]):
    """The body of POST /v1/uploads."""

    filename = TextField("The name of the file.", required=True, max_length=255)
    purpose = ChoiceField("What the file is for.", choices=[FilePurpose.BATCH], required=True)
    bytes = IntegerField("The size of the whole file.", min_value=1, required=True)
    mime_type = TextField(
        "The media type of the file: JSON Lines, whatever its name.",
        required=True,
        max_length=100,
        pattern=r"(?:application|text)/[\w.+-]+",
    )
    expires_after = ExpiresAfterObject("When the file is deleted; default 30 days.")


class CompleteUploadRequestObject(StrictObject[object]):
    """The body of POST /v1/uploads/{id}/complete."""

    part_ids = ListField(
        "The ids of the parts, in the order of the file.",
        child=TextField(max_length=64),
        max_length=uploads.MAX_PARTS,
        not_empty=True,
        required=True,
    )
    md5 = TextField("The MD5 of the whole file in hexadecimal digits.", pattern="[0-9a-fA-F]{32}")

    def check(self, values: Self) -> Self:
        if any("\x00" in part_id for part_id in values.part_ids):
            raise FieldError("must not contain U+0000.", "part_ids")
        return values


def make_upload_object(upload: Upload) -> dict[str, object]:
    """Return OpenAI's Upload object."""
    expired = upload.status == UploadStatus.PENDING and upload.expires_at <= timezone.now()
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": int(upload.created_at.timestamp()),
        "expires_at": int(upload.expires_at.timestamp()),
        "filename": upload.filename,
        "purpose": FilePurpose.BATCH,
        "status": "expired" if expired else upload.status,
        "file": make_file_object(upload.file) if upload.file else None,
    }


class UploadsView(AsyncAPIView):
    """Begin an upload."""

    scope = Scope.BATCHES

    async def post(self, request: APIRequest) -> JSONResponse:
        refuse_idempotency_key(request)
        self.headers.update(await rate_limits.count_request(request.process, request.auth))
        values: UploadRequestObject = UploadRequestObject().validate(request.data)
        if values.bytes > settings.MAX_FILE_BYTES:
            raise payload_too_large(settings.MAX_FILE_BYTES)
        keep = values.expires_after
        default_seconds = int(DEFAULT_KEEP.total_seconds())
        upload = Upload(
            organization_id=request.auth.organization_id,
            api_key_id=request.auth.key_id,
            filename=files.clean_name(values.filename),
            bytes=values.bytes,
            file_seconds=keep.seconds if keep else default_seconds,
        )
        try:
            await sync_to_async(uploads.begin)(upload)
        except files.StorageLimitError as error:
            raise make_storage_error(error, "bytes") from error
        return JSONResponse(make_upload_object(upload))


class UploadView(AsyncAPIView):
    """Get an upload."""

    scope = Scope.BATCHES

    async def get(self, request: APIRequest, upload_id: str) -> JSONResponse:
        return JSONResponse(make_upload_object(await _find(request, upload_id)))


class PartsView(MultiPartAPIView):
    """Add a part to an upload."""

    scope = Scope.BATCHES
    wanted = "the bytes in the part data"

    async def post(self, request: APIRequest, upload_id: str) -> JSONResponse:
        refuse_idempotency_key(request)
        self.headers.update(await rate_limits.count_request(request.process, request.auth))
        upload = _require_pending(await _find(request, upload_id))
        data: Any = request.data
        if unknown := [name for name in data if name != "data"]:
            message = f"{unknown[0][:64]}: there is no such part. Send data."
            raise APIError("unknown_parameter", message, unknown[0][:64])
        content = request.FILES.get("data")
        if content is None or len(request.FILES.getlist("data")) > 1:
            message = "data: send one part of this name, with the bytes as a file."
            raise APIError("missing_required_parameter", message, "data")
        if (content.size or 0) > MAX_PART_BYTES:
            raise payload_too_large(MAX_PART_BYTES)
        request.start_check()  # storing may take long, but little memory
        try:
            part = await fair_semaphore.to_its_end(sync_to_async(uploads.add)(upload, content))
        except files.StorageLimitError as error:
            raise make_storage_error(error, "data") from error
        except FieldError as error:
            raise error.api_error() from error
        except uploads.NotPendingError as error:
            _require_pending(await _find(request, upload_id))
            raise APIError("upload_not_pending", param="id") from error
        return JSONResponse(_make_part_object(part))


class CompleteUploadView(AsyncAPIView):
    """Assemble the file from an upload's parts."""

    scope = Scope.BATCHES

    async def post(self, request: APIRequest, upload_id: str) -> JSONResponse:
        refuse_idempotency_key(request)
        upload = await _find(request, upload_id)
        values: CompleteUploadRequestObject = CompleteUploadRequestObject().validate(request.data)
        if upload.status == UploadStatus.COMPLETED:
            return JSONResponse(make_upload_object(upload))
        joining = sync_to_async(uploads.complete)
        checks = request.process.checks
        await release()
        await checks.uploads.acquire(upload.organization_id)
        try:
            await fair_semaphore.to_its_end(
                joining(_require_pending(upload), values.part_ids, values.md5)
            )
        except FieldError as error:
            raise error.api_error() from error
        except uploads.NotPendingError:
            pass  # another call was first, or ended it otherwise
        finally:
            checks.uploads.release(upload.organization_id)
        row = await _find(request, upload_id)
        if row.status != UploadStatus.COMPLETED:
            _require_pending(row)
        return JSONResponse(make_upload_object(row))


class CancelUploadView(AsyncAPIView):
    """Cancel an upload. One that has ended does not change."""

    scope = Scope.BATCHES

    async def post(self, request: APIRequest, upload_id: str) -> JSONResponse:
        await sync_to_async(uploads.cancel)(await _find(request, upload_id))
        return JSONResponse(make_upload_object(await _find(request, upload_id)))


def _make_part_object(part: UploadPart) -> dict[str, object]:
    return {
        "id": part.id,
        "object": "upload.part",
        "created_at": int(part.created_at.timestamp()),
        "upload_id": part.upload_id,
    }


async def _find(request: APIRequest, upload_id: str) -> Upload:
    owned = Upload.objects.filter(organization_id=request.auth.organization_id)
    upload = await owned.select_related("file").filter(id=upload_id).afirst()
    if upload is None:
        raise APIError("upload_not_found", param="id")
    return upload


def _require_pending(upload: Upload) -> Upload:
    """Return the upload, if it still accepts parts. Raises APIError."""
    standing = make_upload_object(upload)["status"]
    if standing != UploadStatus.PENDING:
        raise APIError("upload_not_pending", f"This upload is {standing}; begin another.", "id")
    return upload
