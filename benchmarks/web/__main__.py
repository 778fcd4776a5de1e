"""CPU time that a synchronous completion costs the web process, less that of a bare ASGI view.

    python -m benchmarks.web

Two idle servers take turns at the same requests, each request on a connection of its own. One is a
whole installation with a scripted engine; its web tier, queue and worker are real. The other is a
view that reads the body and answers with as many bytes, under uvicorn with the same options. CPU
time is read from /proc.
"""

import argparse
import asyncio
import os
import statistics
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.ratios import write_run
from benchmarks.service.installation import (
    MODEL,
    Usage,
    free_port,
    installation,
    running,
    wait_until_ready,
)
from benchmarks.web.bare_client import BareClient

ANSWER = b" " * 700
"""About as many bytes as a completion's answer."""
_LOOK = 2.0
"""Seconds between two checks of a starting process."""
_IDLE = 0.1
"""The share of a core below which a process counts as idle."""
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def bare(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """The least that an ASGI application can do with a request."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


@contextmanager
def bare_server() -> Iterator[tuple[int, int]]:
    """Yields the port and the process id."""
    port = free_port()
    options = ["--port", str(port), "--loop", "uvloop", "--http", "httptools", "--ws", "none"]
    options += ["--no-access-log", "--no-server-header", "--log-level", "error"]
    with running(["-m", "uvicorn", "benchmarks.web.__main__:bare", *options], os.environ) as server:
        wait_until_ready(f"http://127.0.0.1:{port}", server)
        yield port, server.pid


async def cpu_per_request(
    client: BareClient, pid: int, body: dict[str, Any], requests: int, at_once: int
) -> float:
    """Milliseconds of CPU that the server's process spends on each request."""
    remaining = iter(range(requests))

    async def ask() -> None:
        for _ in remaining:
            answer = await client.post("/v1/completions", body)
            assert answer.startswith(b"HTTP/1.1 200"), answer

    began = Usage.of(pid).cpu
    await asyncio.gather(*(ask() for _ in range(at_once)))
    return (Usage.of(pid).cpu - began) * 1000 / requests


async def idle(pid: int) -> None:
    """Wait until a process has finished its work at start, such as reading the tokens of models."""
    before, now = 0.0, Usage.of(pid).cpu
    while now - before > _IDLE * _LOOK:
        await asyncio.sleep(_LOOK)
        before, now = now, Usage.of(pid).cpu


async def measure(args: argparse.Namespace) -> dict[str, float]:
    """Medians in milliseconds."""
    body = {
        "model": MODEL,
        "prompt": list(range(1000, 1000 + args.prompt_tokens)),
        "max_tokens": args.new_tokens,
    }
    figures: dict[str, list[float]] = {"service": [], "bare": []}
    with (
        installation({"max_num_seqs": 256}, args.step) as service,
        bare_server() as (port, pid),
    ):
        targets = {
            "service": (BareClient(service.port, service.key), service.pids["web"]),
            "bare": (BareClient(port, "none"), pid),
        }
        await idle(service.pids["web"])
        for repeat in range(args.repeats + 1):  # the first warms up
            for name, target in targets.items():
                taken = await cpu_per_request(*target, body, args.requests, args.concurrency)
                if repeat:
                    figures[name].append(taken)
    return {name: statistics.median(each) for name, each in figures.items()}


def main() -> None:
    parser = command_line.parser(
        __doc__,
        requests=1000,
        concurrency=16,
        prompt_tokens=64,
        new_tokens=16,
        step=0.005,
        repeats=3,
    )
    parser.add_argument("--json", type=Path, help="also write the ratio to this file")
    args = parser.parse_args()
    medians = asyncio.run(measure(args))
    print(
        f"CPU ms per completion of {args.new_tokens} tokens, {args.concurrency} at once: "
        f"web {medians['service']:.2f}, bare view {medians['bare']:.2f}, "
        f"beyond it {medians['service'] - medians['bare']:.2f}"
    )
    if args.json is not None:
        write_run(
            args.json, {"CPU of a bare view / of a call": medians["bare"] / medians["service"]}
        )


if __name__ == "__main__":
    main()
