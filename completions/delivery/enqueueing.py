"""Puts a prepared request into the queue. A failure leaves no trace."""

import asyncio
import re
from contextlib import suppress
from functools import partial

from django.conf import settings
from django.db import Error as SQLError
from redis.exceptions import RedisError

from completions.accounts.keys import Principal
from completions.contract import tracing
from completions.database.release import run_and_release
from completions.delivery import idempotency, rate_limits
from completions.exceptions import APIError
from completions.http import access_log
from completions.http.process import WebProcess
from completions.jobs import durable
from completions.jobs.limits import (
    Bounds,
    BudgetReachedError,
    ByteBounds,
    BytesFullError,
    KeyQueueFullError,
    LimitReachedError,
    QueueFullError,
    Remaining,
    UnseededError,
)
from completions.jobs.message import make_message
from completions.jobs.new_job import IdempotencyKey, NewJob, ResponseInput
from completions.jobs.record import Kind
from completions.jobs.rids import RidTakenError
from completions.jobs.submit import ModelUnservedError
from completions.models.conversations import make_item_id
from completions.requests.fields.conversions.items import number_items
from completions.requests.preparation import PreparedRequest
from completions.usage import budgets

_NOT_QUEUED = (
    RidTakenError,
    QueueFullError,
    ModelUnservedError,
    LimitReachedError,
    BudgetReachedError,
    UnseededError,
    RedisError,
    OSError,
    SQLError,
)
_BUDGET_SCOPES = 2
"""Budgets per job: the key's and the organization's. Redis may have lost either."""
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""U+0000 in JSON. After an odd number of backslashes, `\\u0000` is text."""


def new_job(
    prepared: PreparedRequest,
    kind: Kind,
    principal: Principal,
    idempotency_key: IdempotencyKey | None = None,
    is_counted: bool = False,
) -> NewJob:
    """Make the job for a request, with the timeout and lifetime of its kind. `is_counted`: the
    request counts toward the key's limit already."""
    context = prepared.context
    waits = kind == "background"
    timeout = settings.BACKGROUND_TIMEOUT if waits else settings.REQUEST_TIMEOUT
    deadline, head_start = prepared.request.deadline, 0.0
    if waits and deadline is not None and deadline.window is not None:
        timeout = deadline.window.total_seconds()
        head_start = durable.find_head_start(kind, deadline.window)
    response_input = _make_response_input(prepared)
    ttl = settings.BACKGROUND_RESULT_TTL if waits else settings.RESULT_TTL
    ttl = ttl if response_input is None else settings.RESPONSE_TTL
    return NewJob(
        id=context.id,
        kind=kind,
        model=context.served_model,
        organization_id=principal.organization_id,
        api_key_id=principal.key_id,
        request=prepared.job_request,
        context=context.to_json(),
        seconds=timeout,
        head_start=head_start,
        ttl=ttl if idempotency_key is None else max(ttl, idempotency.REPLAYED_FOR),
        limits=principal.limits,
        is_counted=is_counted,
        idempotency=idempotency_key,
        request_id=access_log.current_request_id(),
        trace="" if tracing.tracer is None else tracing.make_headers(),
        prices=prepared.request.model.entry.token_prices,
        stored=principal.store_prompts,
        rids=context.rids,
        response_input=response_input,
        session_turn=prepared.session_turn,
    )


def _make_response_input(prepared: PreparedRequest) -> ResponseInput | None:
    """Return what SQL keeps of a response beside its job; None if it is not to be stored."""
    response = prepared.request.response
    if response is None or not response.store:
        return None
    make_id = partial(make_item_id, response_id=prepared.context.id, is_input=True)
    items = number_items(response.items, make_id)
    return ResponseInput(items, response.previous_id, response.conversation_id, response.last_item)


async def enqueue(
    process: WebProcess, job: NewJob, make_promise: durable.PromiseMaker | None = None
) -> Remaining:
    """Store and publish the job, and return what its API key has left. An APIError leaves no trace
    of the job."""
    access_log.note(job_id=job.id, model=job.model)
    if process.is_closing:
        raise APIError("server_shutting_down")
    if process.find_shard_by_organization(job.organization_id).is_full:
        raise APIError("server_overloaded")
    work = _store_and_publish(process, job, make_promise)
    # A client that hangs up must not stop the work between two steps.
    storing = process.spawn(work) if job.is_durable or job.rids else None
    try:
        return await (work if storing is None else asyncio.shield(storing))
    except asyncio.CancelledError:
        if job.idempotency is None:  # with a key, the client can ask for the result again
            process.spawn(_withdraw(process, job, storing))
        raise


async def _store_and_publish(
    process: WebProcess, job: NewJob, make_promise: durable.PromiseMaker | None
) -> Remaining:
    if job.is_durable:
        _require_storable(job)
        try:
            await durable.store(job, make_promise)
        except durable.KeyTakenError as error:
            raise idempotency.make_conflict() from error
        except durable.ConversationLockedError as error:
            raise APIError("conversation_locked", param="conversation") from error
        except durable.SessionLostError as error:
            raise APIError("session_not_found", param="session") from error
        except durable.SessionMovedError as error:
            raise APIError("turn_in_progress", param="after") from error
    try:
        # Take the request ids (`rid`) after the idempotency key: a retry must get 409
        # idempotency_in_progress, not 400 "rid was used".
        if job.rids:
            await process.rids.take(job.api_key_id, job.rids, job.id)
        return await _admit(process, job)
    except _NOT_QUEUED as error:
        process.spawn(_withdraw(process, job))
        raise _make_refusal(process, error, job) from error


async def _admit(process: WebProcess, job: NewJob) -> Remaining:
    """Submit the job. Restores lost budgets from SQL to Redis. Raises as Submission.submit."""
    shard = process.find_shard_by_organization(job.organization_id)
    bounds = _read_bounds(shard.byte_bounds, job)
    message = make_message(job.id, job.model, job.priority)
    if not job.is_durable:
        (shard.reader.blocking_requests if job.kind == "sync" else shard.reader).expect(job.id)
    for _ in range(_BUDGET_SCOPES):
        try:
            return await shard.submission.submit(job, bounds, message)
        except UnseededError as error:
            await run_and_release(partial(budgets.seed, error.scope, job.organization_id))
    return await shard.submission.submit(job, bounds, message)


def _read_bounds(room: ByteBounds, job: NewJob) -> Bounds:
    most = settings.MAX_QUEUED_INTERACTIVE if job.is_interactive else settings.MAX_QUEUED_BACKGROUND
    return Bounds(
        jobs=settings.MAX_QUEUED_JOBS,
        jobs_of_class=most,
        jobs_of_key=settings.MAX_QUEUED_PER_KEY,
        bytes=room.total,
        bytes_of_class=room.of_class,
        bytes_of_organization=room.of_organization,
        bytes_of_key=room.of_key,
    )


def _require_storable(job: NewJob) -> None:
    """Raise APIError for U+0000, which PostgreSQL cannot store in JSON."""
    if _NUL.search(job.request_json) or _NUL.search(job.context):
        remedy = "without background, session and Idempotency-Key"
        if job.response_input is not None:
            remedy = 'with "store": false, without background and Idempotency-Key'
        message = (
            "A text of this request contains U+0000, which cannot be stored. Leave out the "
            f"character, or send the request {remedy}."
        )
        raise APIError("invalid_value", message)


async def _withdraw(
    process: WebProcess, job: NewJob, storing: asyncio.Task[Remaining] | None = None
) -> None:
    """Remove a job that was refused or whose client hung up, once the task `storing` is done."""
    if storing is not None:
        await asyncio.wait({storing})
    reader = process.find_shard_by_organization(job.organization_id).reader
    reader.forget(job.id)
    reader.blocking_requests.forget(job.id)
    with suppress(RedisError, OSError):
        # Before the key: a retry must get 409 idempotency_in_progress, not 400 "rid was used".
        await _free_rids(process, job)
    if job.is_durable:
        await durable.discard(job.id, job)
    await process.cancel_job(job.id)
    # The first _free_rids may have failed for lack of Redis; cancel_job waits for it.
    await _free_rids(process, job)


async def _free_rids(process: WebProcess, job: NewJob) -> None:
    if job.rids:
        await process.rids.free(job.api_key_id, job.rids, job.id)


def _make_refusal(process: WebProcess, error: Exception, job: NewJob) -> APIError:
    if isinstance(error, RidTakenError):
        message = f"rid: {error} was used by this API key in the last 24 hours; send a new id."
        return APIError("invalid_value", message, "rid")
    if isinstance(error, LimitReachedError):
        return rate_limits.refuse_limit(error, job.limits, job.request)
    if isinstance(error, BudgetReachedError):
        return rate_limits.refuse_budget(error, job)
    if isinstance(error, KeyQueueFullError):
        return rate_limits.refuse_queue_full(settings.MAX_QUEUED_PER_KEY)
    if isinstance(error, BytesFullError):
        room = process.find_shard_by_organization(job.organization_id).byte_bounds
        return rate_limits.refuse_bytes(error, room, job.size)
    if isinstance(error, QueueFullError):
        return APIError("server_overloaded")
    if isinstance(error, ModelUnservedError):
        return APIError("model_loading")
    return APIError("queue_unavailable")
