"""Frames and keep-alives."""

import asyncio

import openai
import pytest

from completions.api import sse


def test_a_frame_has_an_id_only_when_asked():
    assert sse.frame({"a": "ü"}) == 'data: {"a":"ü"}\n\n'.encode()
    assert sse.frame({}, 7) == b"id: 7\ndata: {}\n\n"


def test_the_official_client_survives_keep_alives_between_ids():
    from openai._streaming import SSEDecoder

    wire = sse.frame({"n": 1}, 1) + sse.KEEP_ALIVE + sse.frame({"n": 2}, 2) + sse.DONE
    decoded = list(SSEDecoder().iter_bytes(iter([wire])))
    assert [event.data for event in decoded] == ['{"n":1}', '{"n":2}', "[DONE]"]
    assert openai.__version__


async def test_silence_is_reported_and_nothing_is_lost():
    gate = asyncio.Event()

    async def source():
        yield 1
        await gate.wait()
        yield 2

    seen = []
    async for item in sse.with_silences(source(), interval=0.01):
        seen.append(item)
        if item is None:
            gate.set()
    assert seen[0] == 1
    assert seen[-1] == 2
    assert None in seen


async def test_leaving_early_closes_the_source():
    closed = asyncio.Event()

    async def source():
        try:
            while True:
                yield 1
                await asyncio.sleep(10)
        finally:
            closed.set()

    inner = source()
    outer = sse.with_silences(inner, interval=0.01)
    assert await anext(outer) == 1
    assert await anext(outer) is None
    await outer.aclose()
    await inner.aclose()
    assert closed.is_set()


async def test_a_failing_source_fails_its_reader():
    async def source():
        yield 1
        raise LookupError

    with pytest.raises(LookupError):
        async for _ in sse.with_silences(source(), interval=1):
            pass
