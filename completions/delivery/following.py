"""Follows a job's events, and collects them until the job ends."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from completions.exceptions import APIError
from completions.http.process import WebProcess
from completions.jobs.blocking_requests import ReaderLostError
from completions.jobs.events import EndEvent, Event
from completions.responses import sse
from completions.responses.completion import CollectedResponse, ResponseContext

PAST_DEADLINE = 5.0
"""Seconds after the deadline within which a worker or the reconciler ends the job."""
StoredEvents = Sequence[Event]
"""All events of a job, as stored in SQL."""


@dataclass(slots=True)
class Outcome:
    """What a job has produced so far; `end` is None until it has ended."""

    collected: CollectedResponse
    end: EndEvent | None = None

    def add(self, event: Event | None) -> None:
        if isinstance(event, EndEvent):
            self.end = event
        elif event is not None:
            self.collected.add(event)


async def read_events(
    process: WebProcess,
    job_id: str,
    stored: StoredEvents | None = None,
    *,
    is_blocking: bool = False,
) -> AsyncGenerator[Event | None, None]:
    """Yield a job's events from one of three sources: SQL (`stored`), the end of a blocking request
    (`is_blocking`), or Redis. While following Redis, yields None for each keep-alive interval
    without events. Raises ReaderLostError."""
    if is_blocking:
        stored = await process.reader.blocking_requests.wait_for_result(job_id)
    if stored is not None:
        for stored_event in stored:
            yield stored_event
        return
    async with aclosing(process.reader.follow(job_id, sse.KEEP_ALIVE_INTERVAL)) as events:
        async for event in events:
            yield event


async def follow(
    process: WebProcess,
    view: ResponseContext,
    seconds: float = PAST_DEADLINE,
    stored: StoredEvents | None = None,
    *,
    until_closing: bool = False,
    is_blocking: bool = False,
) -> Outcome:
    """Collect a job's events until it ends, for at most `seconds`. The events of a blocking request
    (`is_blocking`) arrive together. With `until_closing`, stop when this process shuts down,
    because another one can answer. Raises APIError."""
    outcome = Outcome(view.make_collected())
    try:
        async with (
            asyncio.timeout(seconds),
            aclosing(read_events(process, view.id, stored, is_blocking=is_blocking)) as events,
        ):
            async for event in events:
                outcome.add(event)
                if until_closing and process.is_closing:
                    break
    except TimeoutError:
        pass
    except ReaderLostError as error:
        raise APIError("queue_unavailable") from error
    return outcome
