"""A job's events as a stream of server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from completions.delivery.answers import PAST_DEADLINE, read_meta
from completions.exceptions import APIError
from completions.http.process import WebProcess
from completions.jobs.blocking_requests import ReaderLostError
from completions.jobs.events import EndEvent, Event
from completions.responses import sse
from completions.responses.completion import ResponseContext


class StreamQuery(NamedTuple):
    """The options of a stream, from query parameters and headers."""

    after: int = 0
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
    cancel_on_disconnect: bool = False,
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a job that has `seconds_left` to its deadline as SSE, ending with
    `[DONE]`. With `cancel_on_disconnect`, the job is
    cancelled when its connection ends; for that, the server must read the first frame even after a
    hang-up."""
    clock = asyncio.get_running_loop().time  # the wall clock may jump
    over_at = clock() + seconds_left + PAST_DEADLINE
    chunks = context.make_chunks()
    event: Event | None = None
    try:
        reading = process.reader.read(context.id, sse.KEEP_ALIVE_INTERVAL, stored)
        async with aclosing(reading) as events:
            async for event in events:
                if process.is_closing:
                    yield sse.make_frame(APIError("server_shutting_down").envelope())
                    break
                if event is None and clock() > over_at:
                    yield sse.make_frame(APIError("queue_timeout").envelope())
                    break
                if event is None:
                    yield sse.KEEP_ALIVE
                    continue
                advanced = (
                    chunks.make_end(event)
                    if isinstance(event, EndEvent)
                    else chunks.make_chunks(event)
                )
                wire = [
                    sse.make_frame(_pad(context, chunk), number if query.ids else None)
                    for number, chunk in advanced
                    if number > query.after
                ]
                reasons = chunks.choices.finish_reasons() if isinstance(event, EndEvent) else [None]
                if query.meta and None not in reasons:  # not an error
                    meta = await read_meta(process, context, reasons)
                    wire.append(
                        sse.make_frame({**chunks.make_envelope(), "usage": None, "meta": meta})
                    )
                if wire:
                    yield wire[0] if len(wire) == 1 else b"".join(wire)
    except ReaderLostError:
        yield sse.make_frame(APIError("queue_unavailable").envelope())
    finally:
        if cancel_on_disconnect and not isinstance(event, EndEvent):
            process.spawn(process.cancel_job(context.id))
    yield sse.DONE


def _pad(context: ResponseContext, chunk: dict[str, object]) -> dict[str, object]:
    if not context.obfuscation or not chunk.get("choices"):
        return chunk
    return {**chunk, "obfuscation": sse.make_obfuscation(chunk)}
