"""The load at which web tier and Redis saturate: many scripted workers, thousands of streams, one
web process.

    python -m benchmarks.service.saturation --workers 20 --streams 1000,2000,5000 --step 1

A worker gives each of its streams a token per step, so a level asks for streams / step tokens a
second; an event has `--interval` tokens. The measurement of a level begins when its last stream has
begun, and ends when its first stream ends. It counts the tokens and events that reach the clients,
the commands of Redis, and the CPU time of web process, Redis, workers and clients. All of them
share one machine, so derive the capacity of a process with a core of its own from its CPU time
per event. With ``--own-core``, the web process has the last core for itself, as in an installation
of many, so that no other process takes its caches; the others share the rest.
"""

import os
import resource
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson
import redis
import uvloop

from benchmarks import command_line
from benchmarks.service.installation import MODEL, Installation, installation
from benchmarks.service.streams import Caller, Stream, crowd, percentile

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
    """Counts up to one moment."""

    at: float
    events: int
    tokens: int
    cpu: dict[str, float]
    """CPU seconds by tier."""
    commands: dict[str, int]
    """Redis commands by name, including those that scripts call."""

    @classmethod
    def now(cls, service: Installation, client: redis.Redis, streams: list[Stream]) -> "Moment":
        cpu: dict[str, float] = defaultdict(float)
        for name, usage in service.usage().items():
            cpu["workers" if name.startswith("worker") else name] += usage.cpu
        own = resource.getrusage(resource.RUSAGE_SELF)
        cpu[CLIENTS] = own.ru_utime + own.ru_stime
        stats = cast("dict[str, dict[str, int]]", client.info("commandstats"))
        commands = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}
        events, tokens = sum(s.events for s in streams), sum(s.tokens for s in streams)
        return cls(time.monotonic(), events, tokens, dict(cpu), commands)


class Window:
    """Records the first moment when all streams run, and the last one."""

    def __init__(self, service: Installation, client: redis.Redis) -> None:
        self._service = service
        self._client = client
        self.begin: Moment | None = None
        self.end: Moment | None = None
        self.running: list[int] = []
        """Running sequences of each worker, once all streams have begun."""

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


def give_core(service: Installation) -> None:
    """Give the web process the last core, and the rest to all others, this one among them. Raises
    SystemExit if there is only one."""
    *rest, last = sorted(os.sched_getaffinity(0))
    if not rest:
        raise SystemExit("a core for the web process needs two, and there is one")
    for name, pid in {**service.pids, "own": os.getpid()}.items():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), [last] if name == "web" else rest)


def _wait_for_workers(client: redis.Redis, count: int) -> None:
    deadline = time.monotonic() + 600
    while client.scard("quire:workers") < count:
        if time.monotonic() > deadline:
            raise SystemExit("not all workers have started")
        time.sleep(0.5)


def measure(service: Installation, streams: int, tokens: int, step: float) -> bool:
    """Run one level. Returns False if a stream was lost."""
    client = redis.Redis.from_url(service.redis_url)
    window = Window(service, client)
    caller = Caller(service.port, MODEL, tokens, scripted=True)
    wanted = [("all", service.key)] * streams
    seen = uvloop.run(crowd(caller, wanted, window.look, interval=1.0))
    whole = sum(each.whole for each in seen)
    print(f"\n{streams} streams of {tokens} tokens, a token per {step:g} s: {whole} whole")
    others = Counter(f"{s.status} {s.code}" for s in seen if not s.whole)
    if others:
        print(f"  not whole: {dict(others)}")
    firsts = [each.first for each in seen if each.first is not None]
    gaps = [gap for each in seen for gap in each.gaps]
    if firsts and gaps:
        print(
            f"  first token p50 {percentile(firsts, 50):.1f}, p99 {percentile(firsts, 99):.1f} s; "
            f"gaps p50 {percentile(gaps, 50):.2f}, p99 {percentile(gaps, 99):.2f} s"
        )
    _report(service, window, streams / step)
    client.close()
    return whole == streams


def _report(service: Installation, window: Window, offered: float) -> None:
    if window.begin is None or window.end is None:
        print("  no moment at which all streams ran: ask for more tokens")
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
    print(
        f"  for {seconds:.0f} s: {offered:.0f} tokens/s asked for, {tokens / seconds:.0f} came "
        f"in {events / seconds:.0f} events/s; {sum(ran.values()) / seconds:.0f} commands/s ({most})"
    )
    print("  | tier | cores | us per event | us per token | MiB |\n  |---|---|---|---|---|")
    for name, cpu in spent.items():
        per = f"{1e6 * cpu / max(1, events):.1f} | {1e6 * cpu / max(1, tokens):.1f}"
        print(f"  | {name} | {cpu / seconds:.2f} | {per} | {memory[name] / 2**20:.0f} |")
    print(f"  streams per worker: {min(window.running)} to {max(window.running)}")


def main() -> None:
    parser = command_line.parser(
        __doc__,
        workers=20,
        streams=[1000, 2000, 5000],
        tokens=120,
        step=1.0,
        interval=1,
        places=256,
    )
    parser.add_argument("--own-core", action="store_true", help="for the web process")
    args = parser.parse_args()
    entry = {"max_num_seqs": args.places, "max_model_len": 2048, "stream_interval": args.interval}
    sound = True
    with installation(entry, args.step, args.workers, SETTINGS) as service:
        with redis.Redis.from_url(service.redis_url) as client:
            _wait_for_workers(client, args.workers)
        if args.own_core:
            give_core(service)
        for streams in args.streams:
            sound &= measure(service, streams, args.tokens, args.step)
    if not sound:
        raise SystemExit("streams were lost")


if __name__ == "__main__":
    main()
