"""CPU of the web process per synchronous completion, beyond that of a bare ASGI view.

    python -m benchmarks.web

A whole installation whose engine is a script (web, queue and worker are real, in a folder that is
deleted afterwards), and a view that reads its body and sends as many bytes, served by uvicorn with
the same options, get the same requests by turns. What the processes have used is read from /proc.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.service import DEMO_MODEL, MODEL, ROOT

ANSWER = b" " * 700
"""About as many bytes as a completion's answer."""
_TICK = os.sysconf("SC_CLK_TCK")
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


def cpu_seconds(pid: int) -> float:
    """Of the process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


@contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(url: str, *processes: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{url} did not become ready")


@contextmanager
def service(step: float) -> Iterator[tuple[str, str, int]]:
    """Address, key and web process of an installation with a scripted worker."""
    with ExitStack() as open_things:
        home = open_things.enter_context(tempfile.TemporaryDirectory(prefix="quire-bench-"))
        models, port = Path(home) / "models.toml", free_port()
        models.write_text(f'[models.{MODEL}]\npath = "{DEMO_MODEL}"\nmax_num_seqs = 256\n')
        environment = {
            **{k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")},
            "QUIRE_HOME": home, "QUIRE_MODELS": str(models), "PORT": str(port),
            "DJANGO_SETTINGS_MODULE": "project.settings",
        }  # fmt: skip
        up = open_things.enter_context(
            running(["manage.py", "up", "--only", "cpu-worker,web"], environment)
        )
        script = ["-m", "benchmarks.scripted_worker", "--model", MODEL, "--step", str(step)]
        worker = open_things.enter_context(running(script, environment))
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/readyz", up, worker)
        key = subprocess.check_output(
            [sys.executable, "manage.py", "create_api_key", "benchmark"],
            cwd=ROOT, env=environment, text=True,
        ).strip()  # fmt: skip
        yield url, key, int((Path(home) / "run" / "web.pid").read_text())


@contextmanager
def bare_server() -> Iterator[tuple[str, str, int]]:
    port = free_port()
    options = ["--port", str(port), "--loop", "uvloop", "--http", "httptools", "--ws", "none"]
    options += ["--no-access-log", "--no-server-header", "--log-level", "warning"]
    with running(["-m", "uvicorn", "benchmarks.web:bare", *options], {**os.environ}) as server:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, server)
        yield url, "none", server.pid


async def cpu_per_request(
    target: tuple[str, str, int], body: dict[str, Any], requests: int, at_once: int
) -> float:
    """Milliseconds of CPU that the server's process spends on each."""
    url, key, pid = target
    headers = {"Authorization": f"Bearer {key}"}
    remaining = iter(range(requests))
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as client:

        async def ask() -> None:
            for _ in remaining:
                answer = await client.post("/v1/completions", json=body)
                answer.raise_for_status()

        began = cpu_seconds(pid)
        await asyncio.gather(*(ask() for _ in range(at_once)))
        return (cpu_seconds(pid) - began) * 1000 / requests


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Medians in milliseconds."""
    body = {
        "model": MODEL, "prompt": list(range(1000, 1000 + args.prompt_tokens)),
        "max_tokens": args.new_tokens,
    }  # fmt: skip
    figures: dict[str, list[float]] = {"service": [], "bare": []}
    with service(args.step) as whole, bare_server() as least:
        for repeat in range(args.repeats + 1):  # the first warms up
            for name, target in (("service", whole), ("bare", least)):
                taken = await cpu_per_request(target, body, args.requests, args.concurrency)
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
