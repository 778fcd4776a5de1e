"""Many streams at once against a whole installation: latencies, fairness, memory, back-pressure.

    python -m benchmarks.load --streams 200,500,1000
    python -m benchmarks.load --engine real --streams 200

Nine of ten streams belong to one organization's key, the tenth to another's. The engines are
scripts with a fixed step, `--workers` of them with 64 places each, or the demo model. Every stream
is read to its end and must be whole; a second round lets the queue take no more than a tenth of the
streams and counts what is refused. The clients share the machine with the service.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.load_plot import Curve, write_plot
from benchmarks.scripted_worker import token

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = ROOT / "var" / "models" / "smollm2-135m-instruct"
MODEL = "loaded"
PLACES = 64
SMALL_SHARE = 0.1
PERCENTILES = (50, 95, 99)


@dataclass
class Service:
    """A running installation and the keys of its two organizations."""

    port: int
    home: Path
    keys: dict[str, str]
    scripted: bool

    def memory(self, name: str) -> float:
        """MiB that a process of `up` holds at the moment."""
        pid = (self.home / "run" / f"{name}.pid").read_text().strip()
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


@dataclass
class Stream:
    """One stream as its client saw it; times in seconds."""

    organization: str
    status: int = 0
    code: str = ""
    retry_after: bool = False
    first: float | None = None
    gaps: list[float] = field(default_factory=list)
    whole: bool = False


@contextmanager
def installation(workers: int, step: float, max_queued: int, scripted: bool) -> Iterator[Service]:
    """`manage.py up`, with scripted workers beside it unless the real one is wanted."""
    with ExitStack() as stack, socket.socket() as probe:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quire-load-")))
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        models = home / "models.toml"
        models.write_text(
            f'[models.{MODEL}]\npath = "{DEMO_MODEL}"\nmax_num_seqs = {PLACES}\n'
            "max_model_len = 2048\n"
        )
        environment = {
            **{k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")},
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "QUIRE_HOME": str(home),
            "QUIRE_MODELS": str(models),
            "QUIRE_MAX_QUEUED_JOBS": str(max_queued),
            "QUIRE_MAX_QUEUED_PER_KEY": str(max_queued),
            "QUIRE_LOG_LEVEL": "WARNING",
            "PORT": str(port),
        }

        def start(*command: str) -> subprocess.Popen[bytes]:
            output = stack.enter_context((home / "out").open("ab"))
            return subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=environment, stdout=output, stderr=output
            )

        only = ["--only", "cpu-worker,web"] if scripted else []
        stack.callback(_stop, start("manage.py", "up", *only))
        for _ in range(workers if scripted else 0):
            arguments = ("--model", MODEL, "--step", str(step))
            stack.callback(_stop, start("-m", "benchmarks.scripted_worker", *arguments))
        _wait_ready(port)
        manage = [sys.executable, "manage.py", "create_api_key"]
        keys = {
            name: subprocess.check_output(
                [*manage, name, "--organization", name], cwd=ROOT, env=environment, text=True
            ).strip()
            for name in ("large", "small")
        }
        yield Service(port, home, keys, scripted)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()


def _wait_ready(port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit("the service did not become ready")


async def follow(service: Service, organization: str, number: int, tokens: int) -> Stream:
    """One stream over a plain socket: a full client would cost more than the service."""
    seen = Stream(organization)
    body = {
        "model": MODEL, "prompt": [7 + number % 900], "max_tokens": tokens, "seed": number,
        "stream": True, "return_token_ids": True, "ignore_eos": True,
    }  # fmt: skip
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port, limit=1 << 20)
    started = time.monotonic()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n"
        % (service.keys[organization].encode(), len(content)) + content
    )  # fmt: skip
    numbers, ids, last = [], [], started
    try:
        while line := await reader.readline():
            if line.startswith(b"HTTP/1.1 "):
                seen.status = int(line.split()[1])
            elif line.lower().startswith(b"retry-after:"):
                seen.retry_after = True
            elif line.startswith((b"data: {", b'{"error"')):
                chunk = json.loads(line.removeprefix(b"data: "))
                if "error" in chunk:
                    seen.code = chunk["error"]["code"]
                    continue
                now = time.monotonic()
                if seen.first is None:
                    seen.first = now - started
                else:
                    seen.gaps.append(now - last)
                last = now
                numbers.append(chunk["sequence_number"])
                ids += chunk["choices"][0]["token_ids"]
    finally:
        writer.close()
    right = not service.scripted or ids == [token(number, 0, k) for k in range(tokens)]
    seen.whole = len(ids) == tokens and numbers == list(range(1, len(numbers) + 1)) and right
    return seen


async def crowd(service: Service, streams: int, tokens: int) -> tuple[list[Stream], float]:
    """All at once. Returns what each saw, and the most memory of the web process, in MiB."""
    small = max(1, round(streams * SMALL_SHARE))
    names = ["small" if n % (streams // small) == 0 else "large" for n in range(streams)]
    running = asyncio.gather(*(follow(service, name, n, tokens) for n, name in enumerate(names)))
    most = 0.0
    while not running.done():
        most = max(most, service.memory("web"))
        await asyncio.wait({running}, timeout=0.25)
    return await running, most


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def report(streams: int, seen: list[Stream], seconds: float, memory: float, tokens: int) -> bool:
    """One table row per organization. False when a stream was lost."""
    for name in ("large", "small"):
        own = [each for each in seen if each.organization == name]
        whole = [each for each in own if each.whole]
        firsts = [each.first for each in whole if each.first is not None]
        gaps = [gap for each in whole for gap in each.gaps]
        cells = [f"{percentile(firsts, p):.2f}" for p in PERCENTILES] if firsts else ["-"] * 3
        cells += [f"{1000 * percentile(gaps, p):.0f}" for p in PERCENTILES] if gaps else ["-"] * 3
        print(f"| {streams} | {name} | {len(whole)}/{len(own)} | {' | '.join(cells)} |")
    total = sum(each.whole for each in seen) * tokens / seconds
    others = Counter(f"{s.status} {s.code}" for s in seen if not s.whole)
    print(
        f"  {seconds:.1f} s, {total:.0f} tokens/s, web {memory:.0f} MiB; not whole: {dict(others)}"
    )
    return all(each.whole for each in seen)


def overload(args: argparse.Namespace, streams: int) -> bool:
    """With room for a tenth of the streams: the rest is told to come again, nothing breaks."""
    room = max(1, streams // 10)
    with installation(args.workers, args.step, room, args.engine == "scripted") as service:
        seen, memory = asyncio.run(crowd(service, streams, args.tokens))
        again, _ = asyncio.run(crowd(service, 10, args.tokens))
    told = [s for s in seen if s.status == 503 and s.retry_after and s.code == "server_overloaded"]
    whole = sum(each.whole for each in seen)
    print(
        f"overload, {streams} streams, room for {room}: {whole} whole, {len(told)} told to come "
        f"again, {len(seen) - whole - len(told)} otherwise; web {memory:.0f} MiB; "
        f"afterwards {sum(each.whole for each in again)} of 10 whole"
    )
    return whole + len(told) == len(seen) and all(each.whole for each in again)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=("scripted", "real"), default="scripted")
    parser.add_argument("--streams", default="200,500,1000", help="levels, one after the other")
    parser.add_argument("--tokens", type=int, default=64, help="per stream (default 64)")
    parser.add_argument("--workers", type=int, default=2, help="scripted ones (default 2)")
    parser.add_argument("--step", type=float, default=0.05, help="seconds (default 0.05)")
    parser.add_argument("--plot", type=Path, help="an SVG of the times to the first token")
    args = parser.parse_args()
    levels = [int(level) for level in args.streams.split(",")]
    sound, curves = True, []
    print("| streams | key | whole | first token p50 s | p95 | p99 | gap p50 ms | p95 | p99 |")
    print("|---|---|---|---|---|---|---|---|---|")
    with installation(args.workers, args.step, 10_000, args.engine == "scripted") as service:
        for streams in levels:
            started = time.monotonic()
            seen, memory = asyncio.run(crowd(service, streams, args.tokens))
            seconds = time.monotonic() - started
            sound &= report(streams, seen, seconds, memory, args.tokens)
            for name in ("large", "small"):
                firsts = [s.first for s in seen if s.organization == name and s.first is not None]
                curves.append(Curve(f"{streams} streams, {name}", firsts))
    if args.plot:
        write_plot(args.plot, curves, "time to the first token, s")
    sound &= overload(args, max(levels))
    if not sound:
        raise SystemExit("streams were lost")


if __name__ == "__main__":
    main()
