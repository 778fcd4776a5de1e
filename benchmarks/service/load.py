"""Many streams at once against a whole installation: latencies, fairness, memory, back-pressure.

    python -m benchmarks.service.load --streams 200,500,1000
    python -m benchmarks.service.load --engine real --streams 200

Nine in ten streams belong to one organization and start first; the rest belong to another. The
engines are scripts with a fixed step, `--workers` of them with 64 slots each, or the demo model.
Every stream is read to its end and must be whole. Then the queue has room for only a tenth of the
streams, and after that a key has room for a twentieth: all others must be refused with Retry-After.
The clients share the machine with the service.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import command_line
from benchmarks.service.installation import MODEL, Installation, installation
from benchmarks.service.streams import Caller, Stream, crowd, percentile

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
    """The tokens of each stream, and the engines that generate them."""

    workers: int
    step: float
    tokens: int
    scripted: bool

    def installation(self, **settings: str) -> AbstractContextManager[Installation]:
        entry = {"max_num_seqs": PLACES, "max_model_len": 2048}
        step = self.step if self.scripted else None
        return installation(entry, step, self.workers, {**QUIET, **settings})

    def caller(self, service: Installation) -> Caller:
        return Caller(service.port, MODEL, self.tokens, self.scripted)


def mix(streams: int, keys: dict[str, str]) -> list[tuple[str, str]]:
    """Return organization and key of each stream: the small organization's come after all of the
    large one's."""
    small = max(1, round(streams * SMALL_SHARE))
    return [("large", keys["large"])] * (streams - small) + [("small", keys["small"])] * small


def report(streams: int, seen: list[Stream], seconds: float, memory: str, tokens: int) -> bool:
    """Print a table row per organization. Returns False if a stream was lost."""
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
    print(f"  {seconds:.1f} s, {total:.0f} tokens/s; most memory: {memory}")
    if others:
        print(f"  not whole: {dict(others)}")
    return all(each.whole for each in seen)


def levels(load: Load, counts: list[int], plot: Path | None) -> bool:
    """Run each level. Returns False unless every stream is whole."""
    sound, curves = True, {}
    print("| streams | key | whole | first token p50 s | p95 | p99 | gap p50 ms | p95 | p99 |")
    print("|---|---|---|---|---|---|---|---|---|")
    with load.installation() as service:
        keys = {name: service.new_key(name) for name in ("large", "small")}
        for streams in counts:
            peaks, began = Peaks(service), time.monotonic()
            seen = asyncio.run(crowd(load.caller(service), mix(streams, keys), peaks.look))
            seconds = time.monotonic() - began
            sound &= report(streams, seen, seconds, str(peaks), load.tokens)
            for name in keys:
                firsts = [s.first for s in seen if s.organization == name and s.first is not None]
                curves[f"{streams} streams, {name}"] = firsts
    if plot:
        write_plot(plot, curves)
    return sound


def write_plot(path: Path, curves: Mapping[str, Sequence[float]]) -> None:
    """Draw, for each level and key, the share of streams that have begun after each time."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(layout="constrained")
    for name, firsts in curves.items():
        axes.ecdf(firsts, label=name)
    axes.set(xlabel="time to the first token, s", ylabel="share of streams")
    axes.legend()
    figure.savefig(path)


def pressure(load: Load, streams: int) -> bool:
    """Check that streams beyond a limit get an error with Retry-After, and all others stay
    whole."""
    room = max(2, streams // 10)
    with load.installation(QUIRE_MAX_QUEUED_JOBS=str(room)) as service:
        caller, peaks = load.caller(service), Peaks(service)
        eager = [("eager", service.new_key("eager"))]
        bound = [("bound", service.new_key("bound", "--max-concurrency", str(room // 2)))]
        full = asyncio.run(crowd(caller, eager * streams, peaks.look))
        limited = asyncio.run(crowd(caller, bound * streams, peaks.look))
        again = asyncio.run(crowd(caller, eager * min(10, room)))
    sound = _is_refused(full, 503, "server_overloaded", f"a queue of {room}")
    sound &= _is_refused(limited, 429, "concurrency_limit_exceeded", f"a key's {room // 2} places")
    print(f"  most memory: {peaks}; afterwards {sum(s.whole for s in again)} of {len(again)} whole")
    return sound and all(each.whole for each in again)


def _is_refused(seen: list[Stream], status: int, code: str, what: str) -> bool:
    """Return whether each stream was served whole or refused with this status and code."""
    whole = sum(each.whole for each in seen)
    refused = sum((s.status, s.code, s.retry_after) == (status, code, True) for s in seen)
    others = Counter(
        f"{s.status} {s.code}" for s in seen if not s.whole and (s.status, s.code) != (status, code)
    )
    print(
        f"{len(seen)} streams for {what}: {whole} whole, {refused} got {status} with Retry-After, "
        f"{len(seen) - whole - refused} otherwise {dict(others) or ''}"
    )
    return whole > 0 and refused > 0 and whole + refused == len(seen)


def main() -> None:
    parser = command_line.parser(__doc__, streams=[200, 500, 1000], tokens=64, workers=2, step=0.05)
    parser.add_argument("--engine", choices=("scripted", "real"), default="scripted")
    parser.add_argument(
        "--plot",
        type=Path,
        help="an SVG of the times to the first token; needs "
        "matplotlib, which the project does not install",
    )
    args = parser.parse_args()
    load = Load(args.workers, args.step, args.tokens, args.engine == "scripted")
    sound = levels(load, args.streams, args.plot)
    sound &= pressure(load, max(args.streams))
    if not sound:
        raise SystemExit("streams were lost, or refused without Retry-After")


if __name__ == "__main__":
    main()
