"""Puts a prepared request into the queue: the job is stored and published, or leaves no trace."""

import asyncio
import re
import time

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import Error as SQLError
from redis.exceptions import RedisError

from completions.accounts.keys import Principal
from completions.delivery import idempotency, rate_limits
from completions.errors import APIError
from completions.http import access_log, request_ids, runtime
from completions.jobs import kept, tracing
from completions.jobs.limits import (
    BudgetReachedError,
    LimitReachedError,
    Remaining,
    UnseededError,
)
from completions.jobs.message import message_of
from completions.jobs.record import IdempotencyKey, Kind, NewJob
from completions.jobs.rids import RidTakenError
from completions.jobs.submit import KeyQueueFullError, ModelUnservedError, QueueFullError
from completions.requests.preparation import Prepared
from completions.usage import budgets

_NOT_QUEUED = (
    QueueFullError, ModelUnservedError, LimitReachedError, BudgetReachedError, UnseededError,
    RedisError, OSError, SQLError,
)  # fmt: skip
_BUDGET_SCOPES = 2
"""The key's budget and the organization's; Redis may have lost what was spent of either."""
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""U+0000 in JSON. After an odd number of backslashes, `\\u0000` is text."""
REPLAYED_FOR = 24 * 3600
"""Seconds for which SQL keeps the result of a request with an idempotency key."""


def new_job(
    prepared: Prepared,
    kind: Kind,
    principal: Principal,
    idempotency_key: IdempotencyKey | None = None,
) -> NewJob:
    """The job of a request, with the timeout and lifetime of its kind."""
    view = prepared.view
    waits = kind == "background"
    timeout = settings.BACKGROUND_TIMEOUT if waits else settings.REQUEST_TIMEOUT
    ttl = settings.BACKGROUND_RESULT_TTL if waits else settings.RESULT_TTL
    return NewJob(
        id=view.id,
        kind=kind,
        model=view.served_model,
        organization_id=principal.organization_id,
        api_key_id=principal.key_id,
        request=prepared.payload,
        view=view.as_dict(),
        deadline=time.time() + timeout,
        ttl=ttl if idempotency_key is None else max(ttl, REPLAYED_FOR),
        limits=principal.limits,
        idempotency=idempotency_key,
        request_id=request_ids.current.get(),
        trace=tracing.headers(),
        prices=prepared.request.model.entry.token_prices,
        stored=principal.store_prompts,
    )


async def enqueue(job: NewJob) -> Remaining:
    """Store and publish the job, or leave nothing behind and raise APIError.

    Returns what the API key has left.
    """
    access_log.note(job_id=job.id, model=job.model)
    here = await runtime.current()
    if here.is_closing:
        raise APIError("server_shutting_down")
    if here.is_full:
        raise APIError("server_overloaded")
    if job.kept or _rids(job):
        return await _enqueue_in_steps(here, job)
    try:
        return await _store_and_publish(here, job)
    except asyncio.CancelledError:
        here.spawn(_withdraw(here, job))
        raise


async def _enqueue_in_steps(here: runtime.Runtime, job: NewJob) -> Remaining:
    """Enqueue in a task of its own: a client that hangs up must not stop it between two steps."""
    storing = here.spawn(_store_and_publish(here, job))
    try:
        return await asyncio.shield(storing)
    except asyncio.CancelledError:
        if job.idempotency is None:  # with a key, the client can ask for the result again
            here.spawn(_withdraw(here, job, storing))
        raise


async def _store_and_publish(here: runtime.Runtime, job: NewJob) -> Remaining:
    if job.kept:
        _require_storable(job)
    await _take_rids(here, job)
    if job.kept:
        try:
            await kept.store(job)
        except kept.KeyTakenError as error:
            await _free_rids(here, job)
            raise idempotency.in_progress() from error
    try:
        return await _admit(here, job)
    except _NOT_QUEUED as error:
        here.spawn(_withdraw(here, job))
        raise _refusal(error, job) from error


async def _admit(here: runtime.Runtime, job: NewJob) -> Remaining:
    """Submit the job. Reads budgets from SQL that Redis has lost. Raises as Submission.submit."""
    interactive = job.waited_for
    most = settings.MAX_QUEUED_INTERACTIVE if interactive else settings.MAX_QUEUED_BACKGROUND
    bounds = settings.MAX_QUEUED_JOBS, most, settings.MAX_QUEUED_PER_KEY
    message = message_of(job.id, job.model, job.priority)
    if not job.kept:
        (here.reader.calls if job.kind == "sync" else here.reader).expect(job.id)
    for _ in range(_BUDGET_SCOPES):
        try:
            return await here.submission.submit(job, *bounds, message)
        except UnseededError as error:
            await sync_to_async(budgets.seed)(error.scope)
    return await here.submission.submit(job, *bounds, message)


def _require_storable(job: NewJob) -> None:
    """Raise APIError for U+0000, which PostgreSQL does not store in JSON."""
    if _NUL.search(job.request_json) or _NUL.search(job.view_json):
        message = (
            "A text of this request contains U+0000, which cannot be stored. Leave out the "
            "character, or send the request without background and Idempotency-Key."
        )
        raise APIError("invalid_value", message)


async def _withdraw(
    here: runtime.Runtime, job: NewJob, storing: asyncio.Task[Remaining] | None = None
) -> None:
    """Take back a job that was refused or whose client hung up, once `storing` it is done."""
    if storing is not None:
        await asyncio.wait({storing})
    here.reader.forget(job.id)
    here.reader.calls.forget(job.id)
    if job.kept:
        await kept.discard(job.id)
    await here.cancel_job(job.id)
    await _free_rids(here, job)


async def _take_rids(here: runtime.Runtime, job: NewJob) -> None:
    """Raise APIError when the API key has used one of the request's own ids before."""
    rids = _rids(job)
    if not rids:
        return
    try:
        await here.rids.take(job.api_key_id, rids, job.id)
    except RidTakenError as error:
        message = f"rid: {error} was used by this API key in the last 24 hours; send a new id."
        raise APIError("invalid_value", message, "rid") from error
    except (RedisError, OSError) as error:
        raise APIError("queue_unavailable") from error


async def _free_rids(here: runtime.Runtime, job: NewJob) -> None:
    if rids := _rids(job):
        await here.rids.free(job.api_key_id, rids, job.id)


def _rids(job: NewJob) -> list[str]:
    rid = job.view.get("rid")
    return [rid] if isinstance(rid, str) else list(rid or ())


def _refusal(error: Exception, job: NewJob) -> APIError:
    if isinstance(error, LimitReachedError):
        return rate_limits.refusal(error, job.limits, job.most_tokens)
    if isinstance(error, BudgetReachedError):
        return rate_limits.quota_refusal(error, job)
    if isinstance(error, KeyQueueFullError):
        return rate_limits.crowded_refusal(settings.MAX_QUEUED_PER_KEY)
    if isinstance(error, QueueFullError):
        return APIError("server_overloaded")
    if isinstance(error, ModelUnservedError):
        return APIError("model_loading")
    return APIError("queue_unavailable")
