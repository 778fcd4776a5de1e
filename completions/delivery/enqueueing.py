"""A validated request on its way into the queue: stored and published, or not there at all."""

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
_SCOPES = 2
"""Whose budgets may have to be seeded: the key's and the organization's."""


_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""In JSON; an even number of backslashes before it is text."""
REPLAYED_FOR = 24 * 3600
"""Seconds that the result of a request with an idempotency key is kept."""


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
    """In a task of its own: a client that hangs up meanwhile must not tear the steps apart."""
    storing = here.spawn(_store_and_publish(here, job))
    try:
        return await asyncio.shield(storing)
    except asyncio.CancelledError:
        if job.idempotency is None:  # else the client can ask again for what becomes of it
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
    """Raises what Submission.submit does, but for what SQL can tell."""
    interactive = job.waited_for
    most = settings.MAX_QUEUED_INTERACTIVE if interactive else settings.MAX_QUEUED_BACKGROUND
    bounds = settings.MAX_QUEUED_JOBS, most, settings.MAX_QUEUED_PER_KEY
    message = message_of(job.id, job.model, job.priority)
    if not job.kept:
        _expect(here, job)
    for _ in range(_SCOPES):
        try:
            return await here.submission.submit(job, *bounds, message)
        except UnseededError as error:
            await sync_to_async(budgets.seed)(error.scope)
    return await here.submission.submit(job, *bounds, message)


def _expect(here: runtime.Runtime, job: NewJob) -> None:
    if job.kind == "sync":
        here.reader.calls.expect(job.id)
    else:
        here.reader.expect(job.id)


def _require_storable(job: NewJob) -> None:
    """SQL keeps JSON, in which PostgreSQL takes every character but one. Raises APIError."""
    if _NUL.search(job.request_json) or _NUL.search(job.view_json):
        message = (
            "A text of this request holds U+0000. Send it without background and Idempotency-Key, "
            "or without that character."
        )
        raise APIError("invalid_value", message)


async def _withdraw(
    here: runtime.Runtime, job: NewJob, storing: asyncio.Task[Remaining] | None = None
) -> None:
    """Take a job back whose client was told no, or does not listen any more."""
    if storing is not None:
        await asyncio.wait({storing})
    here.reader.forget(job.id)
    here.reader.calls.forget(job.id)
    if job.kept:
        await kept.discard(job.id)
    await here.cancel_job(job.id)
    await _free_rids(here, job)


async def _take_rids(here: runtime.Runtime, job: NewJob) -> None:
    """Raises APIError when the key has used one of the caller's ids before."""
    rids = _rids(job)
    if not rids:
        return
    try:
        await here.rids.take(job.api_key_id, rids, job.id)
    except RidTakenError as error:
        message = f"rid: {error} was used before by this API key; ids are taken for 24 hours."
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
