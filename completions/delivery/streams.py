"""A job's events as a stream of server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from completions.delivery.answers import PAST_DEADLINE, read_meta
from completions.exceptions import APIError
from completions.http.process import WebProcess
from completions.jobs.blocking_requests import ReaderLostError
from completions.jobs.events import EndEvent, Event
from completions.jobs.new_job import NewJob
from completions.responses import sse
from completions.responses.completion import Chunks, ResponseContext


class StreamQuery(NamedTuple):
    """The options of a stream, from query parameters and headers."""

    after: int = -1
    """The last sequence number that the client has."""
    ids: bool = False
    """Whether events carry their sequence numbers as ids."""
    meta: bool = False
    """Whether a last chunk reports how the job was run."""


_DEFAULTS = StreamQuery()


async def stream_frames(
    process: WebProcess,
    context: ResponseContext,
    seconds_left: float,
    query: StreamQuery = _DEFAULTS,
    stored: Sequence[Event] | None = None,
    job: NewJob | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a job that has `seconds_left` to its deadline as SSE, ending with
    `[DONE]`. A `job` that was made for this stream is cancelled when its client hangs up, if it
    ends with that; for this, the server must read the first frame even after a hang-up. Where this
    process ends the connection by its shutdown, a stored job goes on: the client reads on from
    another process."""
    clock = asyncio.get_running_loop().time  # the wall clock may jump
    over_at = clock() + seconds_left + PAST_DEADLINE
    chunks = context.make_chunks()
    event: Event | None = None
    try:
        for frame in _make_frames(chunks, chunks.make_start(), query):
            yield frame
        reading = process.reader.read(context.id, sse.KEEP_ALIVE_INTERVAL, stored)
        async with aclosing(reading) as events:
            async for event in events:
                if process.is_closing:
                    yield _make_error(chunks, "server_shutting_down")
                    break
                if event is None and clock() > over_at:
                    yield _make_error(chunks, "queue_timeout")
                    break
                if event is None:
                    yield sse.KEEP_ALIVE
                    continue
                advanced = (
                    chunks.make_end(event)
                    if isinstance(event, EndEvent)
                    else chunks.make_chunks(event)
                )
                wire = _make_frames(chunks, advanced, query)
                reasons = chunks.choices.finish_reasons() if isinstance(event, EndEvent) else [None]
                if query.meta and None not in reasons:  # not an error
                    meta = await read_meta(process, context, chunks.choices.records)
                    wire.append(chunks.make_frame(chunks.make_meta(meta)))
                if wire:
                    yield wire[0] if len(wire) == 1 else b"".join(wire)
    except ReaderLostError:
        yield _make_error(chunks, "queue_unavailable")
    finally:
        if job is not None and not isinstance(event, EndEvent):
            _leave(process, job)
    yield sse.DONE


def _leave(process: WebProcess, job: NewJob) -> None:
    """Cancel a job that ends with its client, which is gone or which this process leaves."""
    goes_on = job.is_durable and process.is_closing
    if job.ends_with_client and not goes_on:
        process.spawn(process.cancel_job(job.id))


def _make_frames(
    chunks: Chunks, advanced: Iterable[tuple[int, dict[str, Any]]], query: StreamQuery
) -> list[bytes]:
    """Return the frames of the chunks that the client does not have yet."""
    return [
        chunks.make_frame(chunk, number if query.ids else None)
        for number, chunk in advanced
        if number > query.after
    ]


def _make_error(chunks: Chunks, name: str) -> bytes:
    return chunks.make_frame(chunks.make_error(APIError(name)))
