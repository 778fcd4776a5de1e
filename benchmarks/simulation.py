"""Where web tier and Redis saturate: many scripted workers, thousands of streams, one web process.

    python -m benchmarks.simulation --workers 20 --streams 1000,2000,5000 --step 1

A worker gives each of its streams a token per step, so a level asks for streams / step tokens a
second; `--interval` of them are an event. Measured while all streams of a level run, between the
last first token and the first end: tokens and events that reached the clients, Redis's commands,
and the processor time of web process, Redis, workers and clients. All of them share the machine
over the loopback interface, so what a process could do with a core of its own is told by its time
per event.
"""

import argparse
import resource
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, cast

import orjson
import redis
import uvloop

from benchmarks.installation import DEMO_MODEL, Installation, installation
from benchmarks.streams import Caller, Stream, crowd, percentile

MODEL = "simulated"
CLIENTS = "clients"
SETTINGS = {
    "QUIRE_LOG_LEVEL": "WARNING",
    "QUIRE_REQUEST_TIMEOUT": "1800",
    "QUIRE_MAX_QUEUED_JOBS": "20000",
    "QUIRE_MAX_QUEUED_INTERACTIVE": "20000",
    "QUIRE_MAX_QUEUED_PER_KEY": "20000",
}


@dataclass(frozen=True)
class Moment:
    """What had happened until then."""

    at: float
    events: int
    tokens: int
    cpu: dict[str, float]
    """Seconds by tier."""
    commands: dict[str, int]
    """Redis's, by name, those of scripts too."""

    @classmethod
    def now(cls, service: Installation, client: redis.Redis, streams: list[Stream]) -> "Moment":
        cpu: dict[str, float] = defaultdict(float)
        for name, usage in service.usage().items():
            cpu["workers" if name.startswith("worker") else name] += usage.cpu
        own = resource.getrusage(resource.RUSAGE_SELF)
        cpu[CLIENTS] = own.ru_utime + own.ru_stime
        told = cast("dict[str, dict[str, int]]", client.info("commandstats"))
        commands = {name.removeprefix("cmdstat_"): each["calls"] for name, each in told.items()}
        events, tokens = sum(s.events for s in streams), sum(s.tokens for s in streams)
        return cls(time.monotonic(), events, tokens, dict(cpu), commands)


class Window:
    """Notes the moments at which all streams had begun, and before the first ended."""

    def __init__(self, service: Installation, client: redis.Redis) -> None:
        self._service = service
        self._client = client
        self.begin: Moment | None = None
        self.end: Moment | None = None
        self.running: list[int] = []
        """Of each worker, once all streams have begun."""

    def look(self, streams: list[Stream]) -> None:
        if any(stream.ended for stream in streams):
            return
        if self.begin is None and all(stream.first is not None for stream in streams):
            self.begin = Moment.now(self._service, self._client, streams)
            self.running = _running(self._client)
        elif self.begin is not None:
            self.end = Moment.now(self._service, self._client, streams)


def _running(client: redis.Redis) -> list[int]:
    names = cast("set[bytes]", client.smembers("quire:workers"))
    beats = [client.get(b"quire:worker:" + name) for name in sorted(names)]
    return [orjson.loads(cast("bytes", beat))["running"] for beat in beats if beat]


def _wait_for_workers(client: redis.Redis, count: int) -> None:
    deadline = time.monotonic() + 600
    while client.scard("quire:workers") < count:
        if time.monotonic() > deadline:
            raise SystemExit("not all workers have started")
        time.sleep(0.5)


def measure(service: Installation, streams: int, tokens: int, step: float) -> bool:
    """One level. False when a stream was lost."""
    client = redis.Redis.from_url(service.redis_url)
    window = Window(service, client)
    caller = Caller(service.port, MODEL, tokens, scripted=True)
    wanted = [("all", service.key)] * streams
    seen = uvloop.run(crowd(caller, wanted, window.look, interval=1.0))
    whole = sum(each.whole for each in seen)
    say(f"\n{streams} streams of {tokens} tokens, a token per {step:g} s: {whole} whole")
    others = Counter(f"{s.status} {s.code}" for s in seen if not s.whole)
    if others:
        say(f"  not whole: {dict(others)}")
    firsts = [each.first for each in seen if each.first is not None]
    gaps = [gap for each in seen for gap in each.gaps]
    if firsts and gaps:
        say(
            f"  first token p50 {percentile(firsts, 50):.1f}, p99 {percentile(firsts, 99):.1f} s; "
            f"gaps p50 {percentile(gaps, 50):.2f}, p99 {percentile(gaps, 99):.2f} s"
        )
    _tell(service, window, streams / step)
    client.close()
    return whole == streams


def _tell(service: Installation, window: Window, offered: float) -> None:
    if window.begin is None or window.end is None:
        say("  no moment at which all streams ran: ask for more tokens")
        return
    begin, end = window.begin, window.end
    seconds, events = end.at - begin.at, end.events - begin.events
    tokens = end.tokens - begin.tokens
    spent = {name: end.cpu[name] - begin.cpu[name] for name in end.cpu}
    ran: dict[str, Any] = {
        name: calls - begin.commands.get(name, 0) for name, calls in end.commands.items()
    }
    most = ", ".join(f"{n} {c / seconds:.0f}" for n, c in Counter(ran).most_common(6))
    memory = Counter[str]()
    for name, usage in service.usage().items():
        memory["workers" if name.startswith("worker") else name] += usage.memory
    say(
        f"  for {seconds:.0f} s: {offered:.0f} tokens/s asked for, {tokens / seconds:.0f} came "
        f"in {events / seconds:.0f} events/s; {sum(ran.values()) / seconds:.0f} commands/s ({most})"
    )
    say("  | tier | cores | us per event | us per token | MiB |\n  |---|---|---|---|---|")
    for name, cpu in spent.items():
        per = f"{1e6 * cpu / max(1, events):.1f} | {1e6 * cpu / max(1, tokens):.1f}"
        say(f"  | {name} | {cpu / seconds:.2f} | {per} | {memory[name] / 2**20:.0f} |")
    say(f"  streams per worker: {min(window.running)} to {max(window.running)}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=20, help="processes (default 20)")
    parser.add_argument("--streams", default="1000,2000,5000", help="levels, one after the other")
    parser.add_argument("--tokens", type=int, default=120, help="per stream (default 120)")
    parser.add_argument("--step", type=float, default=1.0, help="seconds (default 1)")
    parser.add_argument("--interval", type=int, default=1, help="stream_interval (default 1)")
    parser.add_argument("--places", type=int, default=256, help="of a worker (default 256)")
    args = parser.parse_args()
    models = (
        f'[models.{MODEL}]\npath = "{DEMO_MODEL}"\nmax_num_seqs = {args.places}\n'
        f"max_model_len = 2048\nstream_interval = {args.interval}\n"
    )
    worker = ["-m", "benchmarks.scripted_worker", "--model", MODEL, "--step", str(args.step)]
    sound = True
    with installation(models, worker, args.workers, SETTINGS) as service:
        with redis.Redis.from_url(service.redis_url) as client:
            _wait_for_workers(client, args.workers)
        for streams in map(int, args.streams.split(",")):
            sound &= measure(service, streams, args.tokens, args.step)
    if not sound:
        raise SystemExit("streams were lost")


if __name__ == "__main__":
    main()
