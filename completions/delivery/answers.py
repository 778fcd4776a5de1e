"""HTTP responses for a job: its result once it is done, 202 until then, or its polled state."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from django.conf import settings
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from redis.exceptions import RedisError

from completions.accounts.keys import Principal
from completions.delivery.forecasts import Admission
from completions.delivery.preferences import Preferences
from completions.exceptions import APIError, from_job_error
from completions.http.bodies import JSONResponse
from completions.http.process import WebProcess
from completions.jobs import durable
from completions.jobs.events import EndEvent, Event
from completions.jobs.new_job import NewJob
from completions.jobs.reading.blocking_requests import ReaderLostError
from completions.jobs.record import JobRecord
from completions.responses import sse
from completions.responses.choice_record import ChoiceRecord
from completions.responses.completion import CollectedResponse, ResponseContext
from completions.responses.meta import make_meta

PAST_DEADLINE = 5.0
"""Seconds after the deadline within which a worker or the reconciler ends the job."""
_R = TypeVar("_R", bound=HttpResponseBase)


@dataclass(slots=True)
class Outcome:
    """What a job has produced so far; `end` is None until it has ended."""

    collected: CollectedResponse
    end: EndEvent | None = None

    def add(self, event: Event | None) -> None:
        if isinstance(event, EndEvent):
            self.end = event
            self.collected.finished = event.finished
        elif event is not None:
            self.collected.add(event)


async def follow(
    process: WebProcess,
    context: ResponseContext,
    seconds: float = PAST_DEADLINE,
    stored: Sequence[Event] | None = None,
    *,
    until_closing: bool = False,
    is_blocking: bool = False,
) -> Outcome:
    """Collect a job's events until it ends, for at most `seconds`. The events of a blocking request
    (`is_blocking`) arrive together. With `until_closing`, stop when this process shuts down,
    because another one can answer. Raises APIError."""
    outcome = Outcome(context.make_collected())
    reading = process.find_shard_by_job(context.id).reader.read(
        context.id, sse.KEEP_ALIVE_INTERVAL, stored, is_blocking=is_blocking
    )
    try:
        async with asyncio.timeout(seconds), aclosing(reading) as events:
            async for event in events:
                outcome.add(event)
                if until_closing and process.is_closing:
                    break
    except TimeoutError:
        pass
    except ReaderLostError as error:
        raise APIError("queue_unavailable") from error
    return outcome


async def answer(
    process: WebProcess, context: ResponseContext, job: NewJob, meta: bool = False
) -> HttpResponse:
    """Wait for a job and answer with its result. Raises APIError."""
    end = None
    seconds = job.seconds + PAST_DEADLINE
    try:
        outcome = await follow(process, context, seconds, is_blocking=not job.is_durable)
        end = outcome.end
    finally:
        if end is None and job.ends_with_client:
            process.spawn(process.cancel_job(context.id))
    return await _respond(process, context, outcome, meta)


async def answer_again(
    process: WebProcess, context: ResponseContext, job: JobRecord, meta: bool = False
) -> HttpResponse:
    """Repeat the answer that :func:`answer` gave for a job that has ended. Raises APIError."""
    return await _respond(process, context, await follow(process, context, stored=job.events), meta)


async def _respond(
    process: WebProcess, context: ResponseContext, outcome: Outcome, meta: bool
) -> HttpResponse:
    body = _read_result(context, outcome)
    if meta:
        how = await read_meta(process, context, outcome.collected.choices.records)
        for each in body if isinstance(body, list) else [body]:
            each["meta"] = how
    return JSONResponse(body)


def _read_result(context: ResponseContext, outcome: Outcome) -> Any:
    end, collected = outcome.end, outcome.collected
    if end is None:
        raise from_job_error("queue_timeout")
    if cut := collected.choices.end_at(end):
        collected.add(cut)
    elif end.error is not None:
        error = from_job_error(end.error.code, end.error.message)
        if context.location:
            error.headers["Location"] = context.location  # where the partial result is
        raise error
    return collected.make_response(end.usage)


async def accept(
    process: WebProcess,
    context: ResponseContext,
    job: NewJob,
    principal: Principal,
    preferences: Preferences,
    admission: Admission | None = None,
) -> HttpResponse:
    """Answer 202, with the forecast of the job's end if there is one, or 200 if the job ends within
    the time that the client prefers to wait."""
    if preferences.wait:
        return await accept_or_answer(process, context, principal, preferences)
    queued = context.make_collected().make_polled(job.make_record())
    if admission is not None:
        queued["deadline"] = admission.show()
    response = JSONResponse(queued, status=202, headers={"Retry-After": "1"})
    return add_location(response, context, preferences)


async def accept_or_answer(
    process: WebProcess, context: ResponseContext, principal: Principal, preferences: Preferences
) -> HttpResponse:
    """Answer 200 if the job has ended, or ends within the time that the client prefers to wait;
    else 202."""
    wait = min(preferences.wait, settings.REQUEST_TIMEOUT)
    response = await poll(process, context, principal, wait, meta=preferences.meta)
    if "Retry-After" in response.headers:  # it has not ended
        response.status_code = 202
    return add_location(response, context, preferences)


def add_location(response: _R, context: ResponseContext, preferences: Preferences) -> _R:
    """Add the address of the background completion to the response."""
    if context.location:
        response.headers["Location"] = context.location
    if preferences.respond_async:
        response.headers["Preference-Applied"] = "respond-async"
    return response


async def find_job(
    process: WebProcess, context_type: type[ResponseContext], job_id: str, principal: Principal
) -> JobRecord:
    """Find the job, if it belongs to this route and this organization. Raises APIError."""
    try:
        job = await process.find_shard_by_job(job_id).submission.fetch(job_id)
    except (RedisError, OSError) as error:
        raise APIError("queue_unavailable") from error
    if job is None:
        job = await durable.find(job_id, timezone.now())
    of_this_route = job_id.startswith(context_type.id_prefix)
    if job is None or job.organization_id != principal.organization_id or not of_this_route:
        raise APIError(context_type.not_found, param="id")
    return job


async def is_admitted(process: WebProcess, job: JobRecord) -> bool:
    """Return whether the job is in the queue, runs or has ended. A job that only SQL knows may
    still be refused, or waits to be restored to Redis. Raises RedisError or OSError."""
    submission = process.find_shard_by_job(job.id).submission
    return job.has_ended or (await submission.states([job.id]))[0] is not None


async def poll(
    process: WebProcess,
    context: ResponseContext,
    principal: Principal,
    wait: float,
    etags: str | None = None,
    meta: bool = False,
) -> JSONResponse:
    """Return the state of a job now, or as soon as it ends within `wait` seconds. `etags` are the
    ETags that the client has; `meta` adds how the job ran, once it has ended. Raises APIError."""
    job = await find_job(process, type(context), context.id, principal)
    outcome = Outcome(context.make_collected())
    if wait and not job.has_ended:
        outcome = await follow(process, context, wait, until_closing=True)
        job = await find_job(process, type(context), context.id, principal)
    if job.has_ended and outcome.end is None:  # all its events are stored
        outcome = await follow(process, context, stored=job.events)
    headers = {"ETag": f'W/"{job.state}-{job.sequence_number}"'}
    if not job.has_ended:
        headers["Retry-After"] = "1"
    if etags is not None and headers["ETag"] in (each.strip() for each in etags.split(",")):
        return JSONResponse(status=304, headers=headers)
    body = outcome.collected.make_polled(job)
    if meta and job.has_ended:
        body["meta"] = await read_meta(process, context, outcome.collected.choices.records)
    return JSONResponse(body, headers=headers)


async def read_meta(
    process: WebProcess, context: ResponseContext, choices: Sequence[ChoiceRecord]
) -> dict[str, object]:
    """Read the `meta` of a response: how the job ran. Without times if Redis no longer knows
    them."""
    try:
        job = await process.find_shard_by_job(context.id).submission.fetch(context.id)
    except (RedisError, OSError):
        job = None
    return make_meta(context, choices, job)
