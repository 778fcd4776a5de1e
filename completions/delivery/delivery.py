"""A job's results in every form: awaited, accepted for later, polled, streamed, streamed again."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from django.conf import settings
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from redis.exceptions import RedisError
from rest_framework.response import Response

from completions.accounts.keys import Principal
from completions.delivery.preferences import Preferences
from completions.errors import APIError, from_job_error
from completions.http import runtime
from completions.http.renderers import rendered
from completions.jobs import kept
from completions.jobs.calls import ReaderLostError
from completions.jobs.events import EndEvent, Event
from completions.jobs.record import JobRecord, NewJob
from completions.responses import sse
from completions.responses.completion import Collected, View
from completions.responses.meta import meta_of
from completions.responses.obfuscation import obfuscation

_R = TypeVar("_R", bound=HttpResponseBase)
_Events = AsyncGenerator[Event | None, None]
Stored = Sequence[Event]
"""All events of a job that SQL keeps."""

OVERTIME = 5.0
"""Seconds past a job's deadline within which its worker or the reconciler ends it."""


class StreamWish(NamedTuple):
    """What a client wants of a stream."""

    after: int = 0
    """The sequence number that it has already."""
    ids: bool = False
    """Sequence numbers as event ids, too."""
    meta: bool = False
    """A last chunk that tells how the job was run."""


_EVERYTHING = StreamWish()


@dataclass(slots=True)
class _Outcome:
    """A job followed to its end, or to the end of patience."""

    collected: Collected
    end: EndEvent | None = None

    def add(self, event: Event | None) -> None:
        if isinstance(event, EndEvent):
            self.end = event
        elif event is not None:
            self.collected.add(event)


async def _events(job_id: str, stored: Stored | None, patience: float = float("inf")) -> _Events:
    """A job's events from its first: from SQL where they lie there, else as they come, with None
    for every `patience` seconds of silence."""
    if stored is not None:
        for kept in stored:
            yield kept
        return
    here = await runtime.current()
    async with aclosing(here.reader.follow(job_id, patience)) as events:
        async for event in events:
            yield event


async def _follow(
    view: View, patience: float, stored: Stored | None = None, until_closing: bool = False
) -> _Outcome:
    """Collect a job's events until its end or for `patience` seconds, or until this process stops
    where somebody else can be asked for the rest."""
    outcome = _Outcome(view.collected())
    here = await runtime.current()
    all_events = _events(view.id, stored, sse.KEEP_ALIVE_INTERVAL)
    try:
        async with asyncio.timeout(patience), aclosing(all_events) as events:
            async for event in events:
                outcome.add(event)
                if until_closing and here.is_closing:
                    break
    except TimeoutError:
        pass
    except ReaderLostError as error:
        raise APIError("queue_unavailable") from error
    return outcome


async def _call(view: View, patience: float) -> _Outcome:
    """The same of a job that nobody reads before its end."""
    outcome = _Outcome(view.collected())
    here = await runtime.current()
    try:
        async with asyncio.timeout(patience):
            events = await here.reader.calls.result(view.id)
    except TimeoutError:
        return outcome
    except ReaderLostError as error:
        raise APIError("queue_unavailable") from error
    for event in events:
        outcome.add(event)
    return outcome


async def answer(view: View, job: NewJob, meta: bool = False) -> HttpResponse:
    """Wait for a job; unless it is kept nobody else waits for it, and it dies with its
    connection."""
    end = None
    here = await runtime.current()
    patience = job.deadline - time.time() + OVERTIME
    try:
        outcome = await (_follow if job.kept else _call)(view, patience)
        end = outcome.end
    finally:
        if end is None and not job.kept:
            here.spawn(here.cancel_job(view.id))
    body = _whole(view, outcome)
    if meta:
        body["meta"] = await _meta(view, outcome.collected.finish_reasons())
    return rendered(body)


async def answer_again(view: View, job: JobRecord) -> HttpResponse:
    """What :func:`answer` gave for a job that has ended."""
    return rendered(_whole(view, await _follow(view, OVERTIME, job.events)))


def _whole(view: View, outcome: _Outcome) -> dict[str, Any]:
    end = outcome.end
    if end is None:
        raise APIError("queue_timeout")
    if end.error is not None:
        error = from_job_error(end.error.code, end.error.message)
        error.headers["Location"] = view.location  # what there is stays readable
        raise error
    return outcome.collected.response(end.usage)


async def accepted(
    view: View, job: NewJob, principal: Principal, preferences: Preferences
) -> Response:
    """202, or 200 when the job ends within the time the client prefers to wait."""
    if preferences.wait:
        wait = min(preferences.wait, settings.REQUEST_TIMEOUT)
        response = await polled(view, principal, wait, meta=preferences.meta)
        if response.data["status"] in ("queued", "in_progress"):
            response.status_code = 202
    else:
        queued = view.collected().polled(JobRecord.queued(job))
        response = Response(queued, status=202, headers={"Retry-After": "1"})
    return located(response, view, preferences)


def located(response: _R, view: View, preferences: Preferences) -> _R:
    """Say where a background completion is found again."""
    response.headers["Location"] = view.location
    if preferences.respond_async:
        response.headers["Preference-Applied"] = "respond-async"
    return response


async def find(view_type: type[View], job_id: str, principal: Principal) -> JobRecord:
    """The job, if it is one of this route's and this organization's. Raises APIError."""
    here = await runtime.current()
    try:
        job = await here.submission.fetch(job_id)
    except (RedisError, OSError) as error:
        raise APIError("queue_unavailable") from error
    if job is None:
        job = await kept.find(job_id, timezone.now())
    of_this_route = job_id.startswith(view_type.id_prefix)
    if job is None or job.organization_id != principal.organization_id or not of_this_route:
        raise APIError("completion_not_found", param="id")
    return job


async def polled(
    view: View, principal: Principal, wait: float, known: str | None = None, meta: bool = False
) -> Response:
    """The state of a job now, or as soon as it ends within `wait` seconds.

    `known` is the ETag of the state that the client has already. With `meta` what has ended tells
    how it was run.
    """
    job = await find(type(view), view.id, principal)
    outcome = _Outcome(view.collected())
    if wait and not job.ended:
        outcome = await _follow(view, wait, until_closing=True)
        job = await find(type(view), view.id, principal)
    if job.ended and outcome.end is None:  # all of its events are there
        outcome = await _follow(view, OVERTIME, job.events)
    headers = {"ETag": f'W/"{job.state}-{job.sequence_number}"'}
    if not job.ended:
        headers["Retry-After"] = "1"
    if known is not None and headers["ETag"] in (each.strip() for each in known.split(",")):
        return Response(status=304, headers=headers)
    body = outcome.collected.polled(job)
    if meta and job.ended:
        body["meta"] = await _meta(view, outcome.collected.finish_reasons())
    return Response(body, headers=headers)


async def frames(
    view: View,
    deadline: float,
    wish: StreamWish = _EVERYTHING,
    stored: Stored | None = None,
    watched: bool = False,
) -> AsyncGenerator[bytes, None]:
    """A job as SSE; exactly one end, whatever happens.

    Where it is `watched`, the job dies with its connection. Nothing waits between its making and
    the first read of this, but the server for room to write the head, after which it goes on even
    if that came because the client hung up: a stream cannot be left before it has begun.
    """
    here = await runtime.current()
    patience = deadline - time.time() + OVERTIME
    clock = asyncio.get_running_loop().time  # which, unlike the time of day, never jumps
    over_at = clock() + patience
    chunks = view.chunks()
    event: Event | None = None
    try:
        async with aclosing(_events(view.id, stored, sse.KEEP_ALIVE_INTERVAL)) as events:
            async for event in events:
                if here.is_closing:
                    yield sse.frame(APIError("server_shutting_down").envelope())
                    break
                if event is None and clock() > over_at:
                    yield sse.frame(APIError("queue_timeout").envelope())
                    break
                if event is None:
                    yield sse.KEEP_ALIVE
                    continue
                advanced = chunks.end(event) if isinstance(event, EndEvent) else chunks.of(event)
                wire = [
                    sse.frame(_padded(view, chunk), number if wish.ids else None)
                    for number, chunk in advanced
                    if number > wish.after
                ]
                if wish.meta and isinstance(event, EndEvent) and event.error is None:
                    meta = await _meta(view, chunks.finish_reasons())
                    wire.append(sse.frame({**chunks.envelope(), "usage": None, "meta": meta}))
                if wire:
                    yield wire[0] if len(wire) == 1 else b"".join(wire)
    except ReaderLostError:
        yield sse.frame(APIError("queue_unavailable").envelope())
    finally:
        if watched and not isinstance(event, EndEvent):
            here.spawn(here.cancel_job(view.id))
    yield sse.DONE


async def _meta(view: View, finish_reasons: Sequence[str | None]) -> dict[str, Any]:
    here = await runtime.current()
    try:
        job = await here.submission.fetch(view.id)
    except (RedisError, OSError):
        job = None
    return meta_of(view, finish_reasons, job)


def _padded(view: View, chunk: dict[str, Any]) -> dict[str, Any]:
    if not view.obfuscation or not chunk.get("choices"):
        return chunk
    return {**chunk, "obfuscation": obfuscation(chunk)}
