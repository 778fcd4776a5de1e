"""/v1/batches: create, get, list, cancel, and resubmit the failed lines."""

import threading
from collections.abc import Mapping
from datetime import timedelta

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import IntegrityError, connections
from django.db.models import F, Sum
from django.utils import timezone

from completions.accounts.keys import Principal
from completions.batches import files, inline_requests, progress, resubmission, states
from completions.batches.inline_requests import InlineRequestError
from completions.batches.planning import forecast, outlook
from completions.batches.planning.cache import read_cache_size
from completions.batches.planning.dry_run import perform_dry_run
from completions.batches.summary import Summary
from completions.database.release import release
from completions.delivery import idempotency, rate_limits
from completions.delivery.preferences import IDEMPOTENCY_HEADER, read_idempotency_key
from completions.endpoints.batch_request import ON_INVALID_HEADER, BatchRequestObject
from completions.endpoints.files import (
    DEFAULT_KEEP,
    KEEP_SECONDS,
    find_file,
    make_storage_error,
)
from completions.exceptions import APIError, invalid_parameter
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.http.pages import Page, make_time_finder
from completions.http.process import WebProcess
from completions.jobs.new_job import IdempotencyKey
from completions.models import (
    UNFINISHED,
    Batch,
    BatchStatus,
    File,
    FilePurpose,
    OnInvalid,
    OnLate,
    Scope,
)
from completions.models.batches import BATCH_ID
from completions.models.organizations import lock_organization
from completions.requests import fair_semaphore
from completions.requests.preparation import ROUTES

DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 20, 100
_ROUTE = "/v1/batches"
"""The route of the idempotency keys of all requests that make batches."""


class BatchesView(AsyncAPIView):
    """Create a batch, or list the organization's batches."""

    scope = Scope.BATCHES

    async def post(self, request: APIRequest) -> JSONResponse:
        key = read_idempotency_key(request, _ROUTE)
        if key is not None and (first := await _find_first(key, request.auth)) is not None:
            return await _repeat(first)
        self.headers.update(await rate_limits.count_request(request.process, request.auth))
        values: BatchRequestObject = BatchRequestObject().validate(request.data)
        keep = values.output_expires_after
        batch = Batch(
            endpoint=values.endpoint,
            completion_window=values.completion_window,
            output_seconds=keep.seconds if keep else KEEP_SECONDS[-1],
            metadata=values.metadata,
            on_invalid=_parse_on_invalid(values.on_invalid, request),
        )
        batch.on_late = values.on_late or OnLate.ACCEPT
        batch.receipts, batch.close = bool(values.receipts), bool(values.close)
        batch.pilot, batch.held = values.pilot, bool(values.dry_run)
        is_rehearsal = values.dry_run and values.pilot is None
        if values.requests is not None and not is_rehearsal:
            # To its end, so that a hang-up leaves no file without a batch.
            await fair_semaphore.to_its_end(_create_inline(batch, values, request.auth, key))
            return await _present(batch)
        file = await _find_input(values, request.auth)
        if is_rehearsal:
            return JSONResponse(await _rehearse(request.process, batch, file, request.auth))
        await sync_to_async(store)(batch, file, request.auth, key)
        return await _present(batch)

    async def get(self, request: APIRequest) -> JSONResponse:
        owned = Batch.objects.filter(organization_id=request.auth.organization_id)
        page = Page.parse(request, DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        return JSONResponse(await page.read(owned, make_batch_object, make_time_finder(BATCH_ID)))


async def _find_input(values: BatchRequestObject, principal: Principal) -> File:
    """Return the file with the lines: the one that the body names, or a new one for an hour.
    Raises APIError."""
    if values.input_file_id is None:
        return await _store_inline(values, principal, timedelta(hours=1))
    file = await find_file(values.input_file_id, principal, "input_file_id")
    if file.purpose != FilePurpose.BATCH:
        message = "input_file_id: this file was not uploaded for a batch."
        raise APIError("invalid_file_purpose", message, "input_file_id")
    return file


async def _create_inline(
    batch: Batch, values: BatchRequestObject, principal: Principal, key: IdempotencyKey | None
) -> None:
    file = await _store_inline(values, principal, DEFAULT_KEEP)
    await sync_to_async(store_again)(batch, file, principal, key)


async def _store_inline(values: BatchRequestObject, principal: Principal, keep: timedelta) -> File:
    """Store the file that the requests of the body would be. Raises APIError."""
    owner = (principal.organization_id, principal.key_id)
    writing = sync_to_async(inline_requests.store)
    try:
        return await writing(values.requests or [], values.endpoint, owner, keep)
    except InlineRequestError as error:
        raise APIError(error.code, error.message, error.param) from error
    except files.StorageLimitError as error:
        raise make_storage_error(error, "requests") from error


def _parse_on_invalid(value: str | None, request: APIRequest) -> str:
    """Return the body's field or else the header. Raises APIError."""
    header = request.headers.get(ON_INVALID_HEADER)
    if header is not None and header not in OnInvalid.values:
        raise invalid_parameter(ON_INVALID_HEADER, header, "skip or fail")
    return value or header or OnInvalid.SKIP


class BatchView(AsyncAPIView):
    """Get a batch and its progress."""

    scope = Scope.BATCHES

    async def get(self, request: APIRequest, batch_id: str) -> JSONResponse:
        return await _present(await find_batch(batch_id, request.auth))


class StartBatchView(AsyncAPIView):
    """Run the lines that remain after a dry run's pilot. Other batches do not change."""

    scope = Scope.BATCHES

    async def post(self, request: APIRequest, batch_id: str) -> JSONResponse:
        await find_batch(batch_id, request.auth)
        await sync_to_async(states.start)(batch_id, timezone.now())
        return await _present(await find_batch(batch_id, request.auth))


class CancelBatchView(AsyncAPIView):
    """Cancel a batch. The results so far are kept. An ended batch does not change."""

    scope = Scope.BATCHES

    async def post(self, request: APIRequest, batch_id: str) -> JSONResponse:
        await find_batch(batch_id, request.auth)
        await sync_to_async(states.cancel)(batch_id, timezone.now())
        return await _present(await find_batch(batch_id, request.auth))


class ResubmitBatchView(AsyncAPIView):
    """Create a batch from the lines in the error file of an ended batch, or from all lines if it
    ended during its validation."""

    scope = Scope.BATCHES

    async def post(self, request: APIRequest, batch_id: str) -> JSONResponse:
        batch = await find_batch(batch_id, request.auth)
        key = read_idempotency_key(request, _ROUTE, request.path.encode())
        if key is not None and (first := await _find_first(key, request.auth)) is not None:
            return await _repeat(first)
        self.headers.update(await rate_limits.count_request(request.process, request.auth))
        if not resubmission.can_resubmit(batch):
            raise APIError("nothing_to_resubmit", param="id")
        # To its end, so that a hang-up leaves no file without a batch.
        making = sync_to_async(_resubmit)(batch, request.auth, key)
        return await _present(await fair_semaphore.to_its_end(making))


def _resubmit(batch: Batch, principal: Principal, key: IdempotencyKey | None) -> Batch:
    """Return a new batch of the failed lines. Raises APIError."""
    try:
        again, file = resubmission.prepare(batch, timezone.now())
    except File.DoesNotExist as error:
        message = (
            "The input file or the error file of this batch was deleted, has expired or was lost."
        )
        raise APIError("file_not_found", message, "id") from error
    except files.StorageLimitError as error:
        raise make_storage_error(error, "id") from error
    store_again(again, file, principal, key)
    return again


def store(
    batch: Batch, file: File, principal: Principal, key: IdempotencyKey | None = None
) -> None:
    """Store a new batch, unless too many lines or batches of its organization are waiting. Raises
    APIError."""
    set_origin(batch, file, principal)
    if key is not None:
        batch.idempotency_key, batch.body_digest = key.key, key.body_digest
    try:
        sizes = outlook.sample_models(file, principal)
    except File.DoesNotExist:  # the validation says so
        sizes = {}
    try:
        _store(batch, sizes)
    except IntegrityError as error:
        if key is None:
            raise
        raise idempotency.make_conflict() from error


def store_again(
    batch: Batch, file: File, principal: Principal, key: IdempotencyKey | None = None
) -> None:
    """Store a new batch of lines of another. A refusal leaves no file behind."""
    try:
        store(batch, file, principal, key)
    except APIError:
        file.delete()
        raise


def _promise(batch: Batch, sizes: Mapping[str, float]) -> None:
    """Note the forecast that the sizes of its lines give, until their tokens are known. Raises
    APIError."""
    now = timezone.now()
    found = outlook.forecast_file(batch, sizes, now)
    batch.promise = found and found.to_json(now)
    if found and batch.on_late == OnLate.REFUSE and not found.is_in_time:
        message = outlook.explain_late(found, batch.expires_at)
        raise APIError("window_too_short", message, "completion_window")


def _store(batch: Batch, sizes: Mapping[str, float]) -> None:
    with lock_organization(batch.organization_id):  # two must not take the last place, or window
        _require_room(*_count_waiting(batch.organization_id))
        _promise(batch, sizes)
        batch.save(force_insert=True)


def _count_waiting(organization_id: int) -> tuple[int, int]:
    """Return how many lines and how many files of an organization's batches wait."""
    unfinished = Batch.objects.filter(organization_id=organization_id, status__in=UNFINISHED)
    open_lines = Sum(F("total") - F("completed") - F("failed"))
    lines = unfinished.aggregate(lines=open_lines)["lines"] or 0
    return lines, unfinished.filter(status=BatchStatus.VALIDATING).count()


def _require_room(lines: int, validating: int) -> None:
    """Raise APIError if too many lines wait, or too many files."""
    if lines >= settings.MAX_QUEUED_LINES or validating >= settings.MAX_VALIDATING_BATCHES:
        raise APIError(
            "batch_limit_exceeded",
            f"{lines} lines of your organization wait and {validating} files are being validated, "
            f"of {settings.MAX_QUEUED_LINES} and {settings.MAX_VALIDATING_BATCHES} at most. Wait "
            "until some are done.",
        )


async def _rehearse(
    process: WebProcess, batch: Batch, file: File, principal: Principal
) -> Mapping[str, object]:
    """Return the forecast of an unsaved batch. Files of one organization take turns, in threads."""
    checks = process.checks
    lines, validating = await sync_to_async(_count_waiting)(principal.organization_id)
    await release()
    # Counted last, because others may have come during the queries. Nothing awaits from here to the
    # turn.
    _require_room(lines, validating + checks.files.count(principal.organization_id))
    set_origin(batch, file, principal)
    hung_up = threading.Event()

    def run() -> Mapping[str, object]:
        try:
            return perform_dry_run(
                batch, process.validator, read_cache_size, lambda: not hung_up.is_set()
            ).forecast
        finally:
            connections.close_all()  # this thread's own

    await checks.files.acquire(principal.organization_id)
    try:
        # After a hang-up, nobody reads the forecast, and others wait for the turn.
        return await checks.run(principal.organization_id, run, stop=hung_up.set)
    finally:
        checks.files.release(principal.organization_id)


def set_origin(batch: Batch, file: File, principal: Principal) -> None:
    """Set the owner, the file, the final id and the times of a new batch."""
    owner = principal.organization_id, principal.key_id
    states.set_origin(batch, file, owner, ROUTES[batch.endpoint].context_type.id_prefix)


async def _find_first(key: IdempotencyKey, principal: Principal) -> Batch | None:
    """Return the batch that was created with this idempotency key. Raises APIError for another
    body."""
    batches = Batch.objects.filter(api_key_id=principal.key_id, idempotency_key=key.key)
    batch = await batches.afirst()
    if batch is not None and batch.body_digest != key.body_digest:
        raise APIError("idempotency_key_reused", param=IDEMPOTENCY_HEADER)
    return batch


async def find_batch(batch_id: str, principal: Principal) -> Batch:
    """Return the batch, if it is this organization's. Raises APIError."""
    owned = Batch.objects.filter(organization_id=principal.organization_id)
    batch = await owned.filter(id=batch_id).afirst()
    if batch is None:
        raise APIError("batch_not_found", param="id")
    return batch


async def _repeat(first: Batch) -> JSONResponse:
    """Return the answer to a request that was sent again."""
    response = await _present(first)
    response.headers[idempotency.REPLAYED] = "true"
    return response


async def _present(batch: Batch) -> JSONResponse:
    body = make_batch_object(batch)
    if batch.pilot is not None:
        body["forecast"] = await sync_to_async(forecast.forecast_batch)(batch, timezone.now())
    if not batch.has_ended:
        at = await sync_to_async(progress.measure_progress)(batch, timezone.now())
        body["progress"] = {
            "queue_position": at.position,
            "lines_per_second": at.lines_per_second,
            "seconds_left": at.seconds_left,
        }
    return JSONResponse(body)


def make_batch_object(batch: Batch) -> dict[str, object]:
    """Return OpenAI's Batch object. It has the id of an output file once that file has lines."""
    times = {f"{name}_at": getattr(batch, f"{name}_at") for name in _TIMES}
    times |= {f"{status}_at": None for status in _ENDS}
    if batch.has_ended:
        times[f"{batch.status}_at"] = batch.ended_at
    errors = {"object": "list", "data": batch.errors} if batch.errors else None
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "models": batch.model_ids,
        "errors": errors,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "on_late": batch.on_late,
        "deadline": outlook.describe(batch),
        "status": batch.status,
        "output_file_id": batch.output_file_id if batch.completed else None,
        "error_file_id": batch.error_file_id if batch.failed or batch.errors else None,
        **{name: None if at is None else int(at.timestamp()) for name, at in times.items()},
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "usage": {
            "input_tokens": batch.prompt_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
            "total_tokens": batch.prompt_tokens + batch.completion_tokens,
        },
        "metadata": batch.metadata,
        "on_invalid": batch.on_invalid,
        "receipts": batch.receipts,
        "close": batch.close,
        "pilot": batch.pilot,
        "held": batch.held,
        "resubmission_of": batch.resubmission_of or None,
        "plan": batch.plan,
        "summary": Summary(batch.counted_fields, batch.summary).as_summary()
        if batch.summary
        else None,
    }


_TIMES = ("created", "in_progress", "expires", "finalizing", "cancelling")
_ENDS = ("completed", "failed", "expired", "cancelled")
