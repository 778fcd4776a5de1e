"""A job's events as a stream of server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from completions.delivery.answers import PAST_DEADLINE, read_meta
from completions.exceptions import APIError
from completions.http.bodies import BodyWriter
from completions.http.process import WebProcess
from completions.jobs.events import ChoiceEvent, EndEvent, Event
from completions.jobs.new_job import NewJob
from completions.jobs.reading.blocking_requests import ReaderLostError
from completions.jobs.reading.follow import EventReader
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


async def stream_frames(  # noqa: PLR0913 - most are options, which are keywords
    process: WebProcess,
    context: ResponseContext,
    seconds_left: float,
    query: StreamQuery = _DEFAULTS,
    stored: Sequence[Event] | None = None,
    job: NewJob | None = None,
    writer: BodyWriter | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a job that has `seconds_left` to its deadline as SSE. A `job` that was
    made for this stream is cancelled when its client hangs up, if it ends with that; for this, the
    server must read the first frame even after a hang-up. Where this process ends the connection by
    its shutdown, a stored job goes on: the client reads on from another process. With a `writer`,
    events that come while the client has read all others are written at once, and not yielded."""
    clock = asyncio.get_running_loop().time  # the wall clock may jump
    over_at = clock() + seconds_left + PAST_DEADLINE
    chunks = context.make_chunks()
    event: Event | None = None
    reader = process.find_shard_by_job(context.id).reader
    take = None if writer is None else partial(_write_step, process, reader, chunks, query, writer)
    try:
        for frame in _make_frames(chunks, chunks.make_start(), query):
            yield frame
        reading = reader.read(context.id, sse.KEEP_ALIVE_INTERVAL, stored, take=take)
        async with aclosing(reading) as events:
            async for event in events:
                if fault := _find_fault(process, event, is_late=clock() > over_at):
                    yield _make_error(chunks, fault)
                    break
                if event is None:
                    yield chunks.keep_alive
                    continue
                advanced = (
                    chunks.make_end(event)
                    if isinstance(event, EndEvent)
                    else chunks.make_chunks(event)
                )
                wire = _make_frames(chunks, advanced, query)
                if query.meta and isinstance(event, EndEvent):
                    wire += await _frame_meta(process, context, chunks)
                if wire:
                    yield b"".join(wire)
    except ReaderLostError:
        yield _make_error(chunks, "queue_unavailable")
    finally:
        if job is not None and not isinstance(event, EndEvent):
            _leave(process, job)
    for frame in chunks.done:
        yield frame


def _write_step(
    process: WebProcess,
    reader: EventReader,
    chunks: Chunks,
    query: StreamQuery,
    writer: BodyWriter,
    choices: Sequence[ChoiceEvent],
) -> bool:
    """Have the reader write what a step gained. Returns False, without having looked at it, if the
    stream's task must do so."""
    if process.is_closing or not writer.can_write():
        return False
    if wire := _make_frames(chunks, chunks.make_chunks(choices), query):
        reader.write_later(writer.write, b"".join(wire))
    return True


def _find_fault(process: WebProcess, event: Event | None, *, is_late: bool) -> str:
    """Return the error with which a stream ends before its job; empty to go on."""
    if process.is_closing:
        return "server_shutting_down"
    return "queue_timeout" if event is None and is_late else ""


def _leave(process: WebProcess, job: NewJob) -> None:
    """Cancel a job that ends with its client, which is gone or which this process leaves."""
    goes_on = job.is_durable and process.is_closing
    if job.ends_with_client and not goes_on:
        process.spawn(process.cancel_job(job.id))


def _make_frames(
    chunks: Chunks, advanced: Iterable[tuple[int, dict[str, object]]], query: StreamQuery
) -> list[bytes]:
    """Return the frames of the chunks that the client does not have yet."""
    return [
        chunks.make_frame(chunk, number if query.ids else None)
        for number, chunk in advanced
        if number > query.after
    ]


async def _frame_meta(
    process: WebProcess, context: ResponseContext, chunks: Chunks
) -> Sequence[bytes]:
    """Return a frame that says how the job ran, unless it ended with an error."""
    if None in chunks.choices.finish_reasons():
        return ()
    meta = await read_meta(process, context, chunks.choices.records)
    return (chunks.make_frame(chunks.make_meta(meta)),)


def _make_error(chunks: Chunks, name: str) -> bytes:
    return chunks.make_frame(chunks.make_error(APIError(name)))
