"""Follows a job's events, and collects them until the job ends."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from completions.errors import APIError
from completions.http import runtime
from completions.jobs.calls import ReaderLostError
from completions.jobs.events import EndEvent, Event
from completions.responses import sse
from completions.responses.completion import Collected, View

PAST_DEADLINE = 5.0
"""Seconds after its deadline within which a worker or the reconciler ends a job."""
StoredEvents = Sequence[Event]
"""All events of a job that SQL keeps."""


@dataclass(slots=True)
class Outcome:
    """What a job has produced so far; `end` is None until it has ended."""

    collected: Collected
    end: EndEvent | None = None

    def add(self, events: Iterable[Event | None]) -> None:
        for event in events:
            if isinstance(event, EndEvent):
                self.end = event
            elif event is not None:
                self.collected.add(event)


async def events_of(job_id: str, stored: StoredEvents | None) -> AsyncGenerator[Event | None, None]:
    """A job's events from the first: the `stored` ones, or else those in Redis as they come, with
    None after each keep-alive interval of silence. Raises ReaderLostError."""
    if stored is not None:
        for kept in stored:
            yield kept
        return
    here = await runtime.current()
    async with aclosing(here.reader.follow(job_id, sse.KEEP_ALIVE_INTERVAL)) as events:
        async for event in events:
            yield event


async def follow(
    view: View,
    seconds: float = PAST_DEADLINE,
    stored: StoredEvents | None = None,
    until_closing: bool = False,
) -> Outcome:
    """Collect a job's events until it ends, for at most `seconds`. With `until_closing`, stop when
    this process stops, because another one can answer. Raises APIError."""
    outcome = Outcome(view.collected())
    here = await runtime.current()
    try:
        async with asyncio.timeout(seconds), aclosing(events_of(view.id, stored)) as events:
            async for event in events:
                outcome.add([event])
                if until_closing and here.is_closing:
                    break
    except TimeoutError:
        pass
    except ReaderLostError as error:
        raise APIError("queue_unavailable") from error
    return outcome


async def wait_for_call(view: View, seconds: float) -> Outcome:
    """Wait for the whole result of a call for at most `seconds`. Raises APIError."""
    outcome = Outcome(view.collected())
    here = await runtime.current()
    try:
        async with asyncio.timeout(seconds):
            outcome.add(await here.reader.calls.result(view.id))
    except TimeoutError:
        pass
    except ReaderLostError as error:
        raise APIError("queue_unavailable") from error
    return outcome
