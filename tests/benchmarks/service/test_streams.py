"""What the benchmarks' bare client makes of an answer, whole and in pieces."""

import asyncio

import orjson
import pytest

from benchmarks.service.scripted_worker import token
from benchmarks.service.streams import Caller, crowd


def events(number, tokens):
    for position in range(tokens):
        chunk = {
            "sequence_number": position + 1,
            "choices": [{"token_ids": [token(number, 0, position)]}],
        }
        yield b"data: " + orjson.dumps(chunk) + b"\n\n"


def chunked(frames):
    return b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames) + b"0\r\n\r\n"


async def served(answer, tokens=3, cut=7):
    """What two streams see of a server that gives `answer(number)` in small pieces."""

    async def handle(reader, writer):
        body = (await reader.readuntil(b"}")).partition(b"\r\n\r\n")[2]
        sent = answer(orjson.loads(body)["seed"])
        for at in range(0, len(sent), cut):
            writer.write(sent[at : at + cut])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        wanted = [("large", "sk-1"), ("small", "sk-2")]
        return await crowd(Caller(port, "m", tokens, scripted=True), wanted)


@pytest.mark.parametrize("cut", [1, 7, 100_000])
async def test_a_whole_stream_is_seen_whole_however_it_is_cut(cut):
    streams = await served(
        lambda n: b"HTTP/1.1 200 OK\r\n\r\n" + chunked([*events(n, 3), b"data: [DONE]\n\n"]),
        cut=cut,
    )
    assert [s.organization for s in streams] == ["large", "small"]
    for stream in streams:
        assert (stream.status, stream.whole, stream.ended, stream.events) == (200, True, True, 3)


@pytest.mark.parametrize("frames", [slice(1, None), slice(0, 2), slice(0, None, 2)])
async def test_a_gap_is_noticed(frames):
    streams = await served(lambda n: b"HTTP/1.1 200 OK\r\n\r\n" + chunked([*events(n, 3)][frames]))
    assert not any(stream.whole for stream in streams)


async def test_tokens_of_another_stream_are_noticed():
    streams = await served(lambda n: b"HTTP/1.1 200 OK\r\n\r\n" + chunked(events(n + 1, 3)))
    assert not any(stream.whole for stream in streams)


async def test_a_refusal_is_reported():
    error = b'{"error":{"message":"full","type":"server_error","code":"server_overloaded"}}'
    streams = await served(lambda _: b"HTTP/1.1 503 X\r\nRetry-After: 5\r\n\r\n" + error)
    for stream in streams:
        assert (stream.status, stream.code, stream.retry_after, stream.whole) == (
            503, "server_overloaded", True, False,
        )  # fmt: skip
