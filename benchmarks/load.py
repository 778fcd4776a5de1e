"""Many streams at once against a whole installation: latencies, fairness, memory, back-pressure.

    python -m benchmarks.load --streams 200,500,1000
    python -m benchmarks.load --engine real --streams 200

Nine of ten streams belong to one organization's key and come first, the tenth to another's. The
engines are scripts with a fixed step, `--workers` of them with 64 places each, or the demo model.
Every stream is read to its end and must be whole. Then the queue takes no more than a tenth of the
streams, and after that a key no more than a twentieth: the rest must be told when to come again.
The clients share the machine with the service.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.installation import DEMO_MODEL, Installation, installation
from benchmarks.load_plot import Curve, write_plot
from benchmarks.streams import Caller, Stream, crowd, percentile

MODEL = "loaded"
PLACES = 64
SMALL_SHARE = 0.1
PERCENTILES = (50, 95, 99)
QUIET = {"QUIRE_LOG_LEVEL": "WARNING"}


@dataclass
class Peaks:
    """The most memory that each process held, in MiB."""

    service: Installation
    most: dict[str, float] = field(default_factory=dict)

    def look(self, _streams: list[Stream]) -> None:
        for name, usage in self.service.usage().items():
            self.most[name] = max(self.most.get(name, 0.0), usage.memory / 2**20)

    def __str__(self) -> str:
        return ", ".join(f"{name} {most:.0f}" for name, most in self.most.items()) + " MiB"


@dataclass(frozen=True)
class Load:
    """What is asked for, and of whom."""

    workers: int
    step: float
    tokens: int
    scripted: bool

    def installation(self, **settings: str) -> AbstractContextManager[Installation]:
        models = (
            f'[models.{MODEL}]\npath = "{DEMO_MODEL}"\nmax_num_seqs = {PLACES}\n'
            "max_model_len = 2048\n"
        )
        worker = ["-m", "benchmarks.scripted_worker", "--model", MODEL, "--step", str(self.step)]
        return installation(
            models, worker if self.scripted else None, self.workers, {**QUIET, **settings}
        )

    def caller(self, service: Installation) -> Caller:
        return Caller(service.port, MODEL, self.tokens, self.scripted)


def mix(streams: int, keys: dict[str, str]) -> list[tuple[str, str]]:
    """Who asks: the small organization comes behind all of the large one's streams."""
    small = max(1, round(streams * SMALL_SHARE))
    return [("large", keys["large"])] * (streams - small) + [("small", keys["small"])] * small


def report(streams: int, seen: list[Stream], seconds: float, memory: str, tokens: int) -> bool:
    """One table row per organization. False when a stream was lost."""
    for name in ("large", "small"):
        own = [each for each in seen if each.organization == name]
        whole = [each for each in own if each.whole]
        firsts = [each.first for each in whole if each.first is not None]
        gaps = [gap for each in whole for gap in each.gaps]
        cells = [f"{percentile(firsts, p):.2f}" for p in PERCENTILES] if firsts else ["-"] * 3
        cells += [f"{1000 * percentile(gaps, p):.0f}" for p in PERCENTILES] if gaps else ["-"] * 3
        say(f"| {streams} | {name} | {len(whole)}/{len(own)} | {' | '.join(cells)} |")
    total = sum(each.whole for each in seen) * tokens / seconds
    others = Counter(f"{s.status} {s.code}" for s in seen if not s.whole)
    say(f"  {seconds:.1f} s, {total:.0f} tokens/s; most memory: {memory}")
    if others:
        say(f"  not whole: {dict(others)}")
    return all(each.whole for each in seen)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def levels(load: Load, counts: list[int], plot: Path | None) -> bool:
    """Every stream is whole, however many there are."""
    sound, curves = True, []
    say("| streams | key | whole | first token p50 s | p95 | p99 | gap p50 ms | p95 | p99 |")
    say("|---|---|---|---|---|---|---|---|---|")
    with load.installation() as service:
        keys = {name: service.new_key(name) for name in ("large", "small")}
        for streams in counts:
            peaks, began = Peaks(service), time.monotonic()
            seen = asyncio.run(crowd(load.caller(service), mix(streams, keys), peaks.look))
            seconds = time.monotonic() - began
            sound &= report(streams, seen, seconds, str(peaks), load.tokens)
            for name in keys:
                firsts = [s.first for s in seen if s.organization == name and s.first is not None]
                curves.append(Curve(f"{streams} streams, {name}", firsts))
    if plot:
        write_plot(plot, curves, "time to the first token, s")
    return sound


def pressure(load: Load, streams: int) -> bool:
    """Streams beyond the limit get an error with Retry-After, and all others stay whole."""
    room = max(2, streams // 10)
    with load.installation(QUIRE_MAX_QUEUED_JOBS=str(room)) as service:
        caller, peaks = load.caller(service), Peaks(service)
        eager = [("eager", service.new_key("eager"))]
        bound = [("bound", service.new_key("bound", "--max-concurrency", str(room // 2)))]
        full = asyncio.run(crowd(caller, eager * streams, peaks.look))
        limited = asyncio.run(crowd(caller, bound * streams, peaks.look))
        again = asyncio.run(crowd(caller, eager * min(10, room)))
    sound = _refused(full, 503, "server_overloaded", f"a queue of {room}")
    sound &= _refused(limited, 429, "concurrency_limit_exceeded", f"a key's {room // 2} places")
    say(f"  most memory: {peaks}; afterwards {sum(s.whole for s in again)} of {len(again)} whole")
    return sound and all(each.whole for each in again)


def _refused(seen: list[Stream], status: int, code: str, what: str) -> bool:
    """Whether each was served whole or refused in this way."""
    whole = sum(each.whole for each in seen)
    told = sum((s.status, s.code, s.retry_after) == (status, code, True) for s in seen)
    others = Counter(
        f"{s.status} {s.code}" for s in seen if not s.whole and (s.status, s.code) != (status, code)
    )
    say(
        f"{len(seen)} streams for {what}: {whole} whole, {told} told {status} and when to come "
        f"again, {len(seen) - whole - told} otherwise {dict(others) or ''}"
    )
    return whole > 0 and told > 0 and whole + told == len(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=("scripted", "real"), default="scripted")
    parser.add_argument("--streams", default="200,500,1000", help="levels, one after the other")
    parser.add_argument("--tokens", type=int, default=64, help="per stream (default 64)")
    parser.add_argument("--workers", type=int, default=2, help="scripted ones (default 2)")
    parser.add_argument("--step", type=float, default=0.05, help="seconds (default 0.05)")
    parser.add_argument("--plot", type=Path, help="an SVG of the times to the first token")
    args = parser.parse_args()
    load = Load(args.workers, args.step, args.tokens, args.engine == "scripted")
    counts = [int(count) for count in args.streams.split(",")]
    sound = levels(load, counts, args.plot)
    sound &= pressure(load, max(counts))
    if not sound:
        raise SystemExit("streams were lost, or refused without a word")


if __name__ == "__main__":
    main()
