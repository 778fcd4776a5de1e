"""Clients that read nothing for a while, and clients that vanish at any moment."""

import json
import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from completions.jobs.connection import connect
from tests.acceptance.service import MODEL
from tests.faults.invariants import PATIENCE, until
from tests.faults.traffic import tokens

pytestmark = pytest.mark.faults

SLOW = 20
LONG = 3000
CHOICES = 2
MEGABYTE = 1 << 20
ROOM = 50 * MEGABYTE
"""Of the web process, which takes 18. If it kept what they have not read, it would take 87."""


def raw(service, path: str, body: bytes, content_type: str = "application/json") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {service.key}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode() + body


def memory(pid: int) -> int:
    """Resident, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def test_slow_readers_use_little_memory_and_lose_nothing(scripted):
    """They read only once the service has generated everything, which needed none of them."""
    call = {
        "model": MODEL, "prompt": [7], "max_tokens": LONG, "stream": True, "seed": 3,
        "n": CHOICES, "return_token_ids": True, "background": True,
    }  # fmt: skip
    before = memory(scripted.pid("web"))
    request = raw(scripted, "/v1/completions", json.dumps(call).encode())
    with ExitStack() as stack, ThreadPoolExecutor(SLOW) as pool:
        readers = [stack.enter_context(slow_reader(scripted.port)) for _ in range(SLOW)]
        for each in readers:
            each.sendall(request)
        client = connect(scripted.redis_url)
        until(lambda: client.zcard("quire:open") == SLOW, "all run")
        until(lambda: client.zcard("quire:open") == 0, "all have ended")
        client.close()
        assert memory(scripted.pid("web")) - before < ROOM
        for text in pool.map(everything, readers):
            lines = [line for line in text.splitlines() if line.startswith("data: {")]
            chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
            numbers = [chunk["sequence_number"] for chunk in chunks]
            assert numbers == list(range(1, CHOICES * LONG + 1))
            choices = [choice for chunk in chunks for choice in chunk["choices"]]
            for index in range(CHOICES):
                ids = [i for c in choices if c["index"] == index for i in c["token_ids"]]
                assert ids == tokens(3, LONG, index)
            assert "data: [DONE]" in text


def slow_reader(port: int) -> socket.socket:
    """Takes little at a time. Were its buffer to shrink after it has connected, the kernel would
    keep back what does not fill half of the window that it saw first. Segments are those of a
    network: with the loopback's of 64 KiB the kernel takes 4 MB of a sender, all that there is."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    reader.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1460)
    reader.settimeout(300)
    reader.connect(("127.0.0.1", port))
    return reader


def everything(reader: socket.socket) -> str:
    """Keep-alives do not count: a stream that has lost its end would send them for an hour."""
    parts, deadline = [], time.monotonic() + PATIENCE
    while part := reader.recv(1 << 16):
        assert time.monotonic() < deadline, "not in time: the end of the stream"
        parts.append(part)
    return b"".join(parts).decode()


def test_a_client_that_disconnects_at_any_byte_leaves_nothing_behind(scripted):
    """In the midst of the head, of the body, of an upload, and of the answer."""
    dice = random.Random(7)  # noqa: S311
    call = {"model": MODEL, "prompt": [7], "max_tokens": LONG}
    upload = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
        b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        + b'{"custom_id": "x"}\n' * 200_000
        + b"\r\n--b--\r\n"
    )
    whole = [
        raw(scripted, "/v1/completions", json.dumps({**call, "stream": True}).encode()),
        raw(scripted, "/v1/completions", json.dumps({**call, "max_tokens": 50}).encode()),
        raw(scripted, "/v1/files", upload, "multipart/form-data; boundary=b"),
    ]
    for number in range(60):
        request = whole[number % 3]
        cut = dice.choice([dice.randrange(1, 200), dice.randrange(len(request)), len(request)])
        with socket.create_connection(("127.0.0.1", scripted.port)) as connection:
            connection.settimeout(120)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(request[:cut])
            if cut == len(request) and number % 2:
                connection.recv(1)  # the answer has begun
    client = connect(scripted.redis_url)
    until(lambda: client.zcard("quire:open") == 0, "every job ends")
    of_streams = [
        (state, int(generated or 0))
        for key in client.scan_iter("quire:job:*", count=1000)
        for kind, state, generated in [client.hmget(key, "kind", "state", "generated")]
        if kind == b"stream"
    ]
    client.close()
    assert b"cancelled" in dict(of_streams)
    assert max(generated for _, generated in of_streams) < LONG  # none ran on to its own end
    until(lambda: not list((scripted.home / "tmp").iterdir()), "no half upload stays")
    with scripted.http() as http:
        for file in http.get("/v1/files").json()["data"]:
            assert http.get(f"/v1/files/{file['id']}/content").status_code == 200
