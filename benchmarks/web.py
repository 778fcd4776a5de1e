"""CPU of the web process per synchronous completion, beyond that of a bare ASGI view.

    python -m benchmarks.web

A whole installation whose engine is a script (web, queue and worker are real), and a view that
reads its body and sends as many bytes, served by uvicorn with the same options, get the same
requests by turns, each on a connection of its own. What the processes have used is read from /proc.
"""

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import httpx

from benchmarks.bare_client import BareClient
from benchmarks.installation import DEMO_MODEL, ROOT, Usage, free_port, installation

MODEL = "benchmarked"
ANSWER = b" " * 700
"""About as many bytes as a completion's answer."""
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
    """Port and process id."""
    port = free_port()
    options = ["--port", str(port), "--loop", "uvloop", "--http", "httptools", "--ws", "none"]
    options += ["--no-access-log", "--no-server-header", "--log-level", "error"]
    command = [sys.executable, "-m", "uvicorn", "benchmarks.web:bare", *options]
    server = subprocess.Popen(command, cwd=ROOT)
    try:
        _wait_for(f"http://127.0.0.1:{port}", server)
        yield port, server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            httpx.get(url)
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"{url} did not become ready")


async def cpu_per_request(
    client: BareClient, pid: int, body: dict[str, Any], requests: int, at_once: int
) -> float:
    """Milliseconds of CPU that the server's process spends on each."""
    remaining = iter(range(requests))

    async def ask() -> None:
        for _ in remaining:
            answer = await client.post("/v1/completions", body)
            assert answer.startswith(b"HTTP/1.1 200"), answer

    began = Usage.of(pid).cpu
    await asyncio.gather(*(ask() for _ in range(at_once)))
    return (Usage.of(pid).cpu - began) * 1000 / requests


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Medians in milliseconds."""
    body = {
        "model": MODEL, "prompt": list(range(1000, 1000 + args.prompt_tokens)),
        "max_tokens": args.new_tokens,
    }  # fmt: skip
    models = f'[models.{MODEL}]\npath = "{DEMO_MODEL}"\nmax_num_seqs = 256\n'
    worker = ["-m", "benchmarks.scripted_worker", "--model", MODEL, "--step", str(args.step)]
    figures: dict[str, list[float]] = {"service": [], "bare": []}
    with installation(models, worker) as service, bare_server() as (port, pid):
        targets = {
            "service": (BareClient(service.port, service.key), service.pids["web"]),
            "bare": (BareClient(port, "none"), pid),
        }
        for repeat in range(args.repeats + 1):  # the first warms up
            for name, target in targets.items():
                taken = await cpu_per_request(*target, body, args.requests, args.concurrency)
                if repeat:
                    figures[name].append(taken)
    medians = {name: statistics.median(found) for name, found in figures.items()}
    return {**medians, "beyond": medians["service"] - medians["bare"], "repeats": figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--step", type=float, default=0.005, help="seconds of an engine step")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    args = parser.parse_args()
    found = asyncio.run(measure(args))
    if args.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    sys.stdout.write(
        f"CPU ms per completion of {args.new_tokens} tokens, {args.concurrency} at once: "
        f"web {found['service']:.2f}, bare view {found['bare']:.2f}, "
        f"beyond it {found['beyond']:.2f}\n"
    )


if __name__ == "__main__":
    main()
