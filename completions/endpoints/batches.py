"""/v1/batches: create, retrieve, list, cancel, send the unfinished lines again."""

import re
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import IntegrityError
from django.db.models import F, Sum
from django.utils import timezone
from rest_framework.response import Response

from completions.accounts.keys import Principal
from completions.batches import progress, resubmission, states
from completions.delivery import idempotency
from completions.endpoints.files import KEEP_SECONDS, find_file
from completions.errors import APIError, FieldError
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.pages import Page
from completions.jobs.record import IdempotencyKey
from completions.models import UNFINISHED, Batch, BatchStatus, File, FilePurpose, Scope
from completions.requests.fields.base import ChoiceField, IntegerField, ObjectField, TextField
from completions.requests.fields.objects import StrictSerializer, Values
from completions.requests.preparation import ROUTES

DEFAULT_LISTED, MOST_LISTED = 20, 100
WINDOW_HOURS = range(1, 168 + 1)
MAX_PAIRS, MAX_NAME, MAX_VALUE = 16, 64, 512
_WINDOW = re.compile(r"(\d{1,3})h")


class ExpiresAfterSerializer(StrictSerializer):
    anchor = ChoiceField(choices=["created_at"], help_text="From the output file's creation on.")
    seconds = IntegerField(
        min_value=KEEP_SECONDS[0], max_value=KEEP_SECONDS[-1], help_text="That it is kept."
    )


class BatchRequestSerializer(StrictSerializer):
    """The body of POST /v1/batches."""

    input_file_id = TextField(help_text="Of an uploaded file with one request per line.")
    endpoint = ChoiceField(choices=list(ROUTES), help_text="To which all requests go.")
    completion_window = TextField(
        default="24h", help_text="1h to 168h; what is not done by then ends as batch_expired."
    )
    metadata = ObjectField(required=False, help_text="Up to 16 strings of the client's own.")
    output_expires_after = ExpiresAfterSerializer(
        required=False, help_text="When the output and error files are deleted; 30 days."
    )

    def check(self, values: Values) -> Values:
        window = _WINDOW.fullmatch(values["completion_window"])
        if window is None or int(window[1]) not in WINDOW_HOURS:
            message = f'must be from "{WINDOW_HOURS[0]}h" to "{WINDOW_HOURS[-1]}h".'
            raise FieldError("invalid_value", message, "completion_window")
        _check_metadata(values["metadata"] or {})
        return values


def _check_metadata(metadata: dict[str, Any]) -> None:
    if len(metadata) > MAX_PAIRS:
        raise FieldError("invalid_value", f"may hold at most {MAX_PAIRS} pairs.", "metadata")
    for name, value in metadata.items():
        path = f"metadata.{name[:MAX_NAME]}"
        if not 1 <= len(name) <= MAX_NAME:
            message = f"keys must have 1-{MAX_NAME} characters."
            raise FieldError("invalid_value", message, "metadata")
        if not isinstance(value, str):
            raise FieldError("invalid_type", "must be a string.", path)
        if len(value) > MAX_VALUE:
            raise FieldError("invalid_value", f"may have at most {MAX_VALUE} characters.", path)
        if "\x00" in name + value:
            raise FieldError("invalid_value", "must not hold U+0000.", "metadata")


class BatchesView(AsyncAPIView):
    """Create a batch, or list those there are."""

    scope = Scope.BATCHES

    async def post(self, request: APIRequest) -> Response:
        key = idempotency.key_of(request, "/v1/batches")
        if key is not None and (first := await _first(key, request.auth)) is not None:
            response = await _presented(first)
            response.headers[idempotency.REPLAYED] = "true"
            return response
        serializer = BatchRequestSerializer(data=request.data)
        serializer.is_valid()
        wanted = serializer.validated_data
        file = await find_file(wanted["input_file_id"], request.auth, "input_file_id")
        if file.purpose != FilePurpose.BATCH:
            message = "input_file_id: this file was not uploaded for a batch."
            raise APIError("invalid_file_purpose", message, "input_file_id")
        keep = wanted["output_expires_after"] or {"seconds": KEEP_SECONDS[-1]}
        batch = Batch(
            endpoint=wanted["endpoint"],
            completion_window=wanted["completion_window"],
            output_seconds=keep["seconds"],
            metadata=wanted["metadata"],
        )
        if key is not None:
            batch.idempotency_key, batch.body_digest = key.key, key.body_digest
        return await _created(batch, file, request.auth)

    async def get(self, request: APIRequest) -> Response:
        owned = Batch.objects.filter(organization_id=request.auth.organization_id)
        page = Page.of(request, DEFAULT_LISTED, MOST_LISTED)
        return Response(await page.read(owned, batch_object))


class BatchView(AsyncAPIView):
    """One batch, with its progress."""

    scope = Scope.BATCHES

    async def get(self, request: APIRequest, batch_id: str) -> Response:
        return await _presented(await _find(batch_id, request.auth))


class CancelBatchView(AsyncAPIView):
    """Run no more of its lines; those that are done are kept. An ended batch stays as it is."""

    scope = Scope.BATCHES

    async def post(self, request: APIRequest, batch_id: str) -> Response:
        await _find(batch_id, request.auth)
        await sync_to_async(states.cancel)(batch_id, timezone.now())
        return await _presented(await _find(batch_id, request.auth))


class ResubmitBatchView(AsyncAPIView):
    """A new batch of the lines in the error file of one that has ended."""

    scope = Scope.BATCHES

    async def post(self, request: APIRequest, batch_id: str) -> Response:
        idempotency.refuse(request)
        batch = await _find(batch_id, request.auth)
        if not batch.ended or not batch.failed:
            raise APIError("nothing_to_resubmit", param="id")
        try:
            again, file = await sync_to_async(resubmission.prepare)(batch, timezone.now())
        except File.DoesNotExist as error:
            message = "The input file or the error file of this batch was deleted or has expired."
            raise APIError("file_not_found", message, "id") from error
        return await _created(again, file, request.auth)


async def _created(batch: Batch, file: File, principal: Principal) -> Response:
    """Store a new batch, unless too much of its organization's waits already."""
    unfinished = Batch.objects.filter(
        organization_id=principal.organization_id, status__in=UNFINISHED
    )
    open_lines = Sum(F("total") - F("completed") - F("failed"))
    queued = (await unfinished.aaggregate(lines=open_lines))["lines"] or 0
    waiting = await unfinished.filter(status=BatchStatus.VALIDATING).acount()
    if queued >= settings.MAX_QUEUED_LINES or waiting >= settings.MAX_VALIDATING_BATCHES:
        raise APIError(
            "batch_limit_exceeded",
            f"{queued} lines of your organization wait and {waiting} batches are being validated, "
            f"of {settings.MAX_QUEUED_LINES} and {settings.MAX_VALIDATING_BATCHES} at most. Wait "
            "until some are done.",
        )
    owner = principal.organization_id, principal.key_id
    states.place(batch, file, owner, ROUTES[batch.endpoint].view_type.id_prefix)
    try:
        await batch.asave(force_insert=True)
    except IntegrityError as error:
        if batch.idempotency_key is None:
            raise
        raise idempotency.in_progress() from error
    return await _presented(batch)


async def _first(key: IdempotencyKey, principal: Principal) -> Batch | None:
    """The batch that an idempotency key stands for. Raises APIError when it was another's."""
    made = Batch.objects.filter(api_key_id=principal.key_id, idempotency_key=key.key)
    batch = await made.afirst()
    if batch is not None and batch.body_digest != key.body_digest:
        raise idempotency.reused()
    return batch


async def _find(batch_id: str, principal: Principal) -> Batch:
    owned = Batch.objects.filter(organization_id=principal.organization_id)
    batch = await owned.filter(id=batch_id).afirst()
    if batch is None:
        raise APIError("batch_not_found", param="id")
    return batch


async def _presented(batch: Batch) -> Response:
    body = batch_object(batch)
    if not batch.ended:
        at = await sync_to_async(progress.of)(batch, timezone.now())
        body["progress"] = {
            "queue_position": at.position,
            "lines_per_second": at.lines_per_second,
            "seconds_left": at.seconds_left,
        }
    return Response(body)


def batch_object(batch: Batch) -> dict[str, Any]:
    """OpenAI's Batch object. File ids appear as soon as there is something to read in the file."""
    times = {f"{name}_at": getattr(batch, f"{name}_at") for name in _TIMES}
    times |= {f"{status}_at": None for status in _ENDS}
    if batch.ended:
        times[f"{batch.status}_at"] = batch.ended_at
    errors = {"object": "list", "data": batch.errors} if batch.errors else None
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "errors": errors,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id if batch.completed else None,
        "error_file_id": batch.error_file_id if batch.failed or batch.errors else None,
        **{name: None if at is None else int(at.timestamp()) for name, at in times.items()},
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "usage": _usage(batch),
        "metadata": batch.metadata,
        "resubmission_of": batch.resubmission_of or None,
    }


_TIMES = ("created", "in_progress", "expires", "finalizing", "cancelling")
_ENDS = ("completed", "failed", "expired", "cancelled")


def _usage(batch: Batch) -> dict[str, Any]:
    return {
        "input_tokens": batch.prompt_tokens,
        "input_tokens_details": {"cached_tokens": batch.cached_tokens},
        "output_tokens": batch.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
        "total_tokens": batch.prompt_tokens + batch.completion_tokens,
    }
