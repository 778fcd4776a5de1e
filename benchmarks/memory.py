"""Whether the engine's memory stays flat, however many requests it has served.

    python -m benchmarks.memory [--requests 10000]

A tiny model with random weights serves requests of every kind, as they come to a worker: drawn and
greedy, several choices, grammars, stops, penalties, prompts that begin alike, organizations that
come and go; and those that end otherwise: aborted, past their deadline, with a grammar that cannot
be compiled. The table shows resident memory and Python's objects; the exit status is 1 if they
still grew after the first fifth of the requests.
"""

import argparse
import gc
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.random_models import SHAPES, make_engine
from workers.engine.engine import Engine
from workers.engine.request import Request, RequestOutput, SamplingParams

_IN_FLIGHT = 64
_ROWS = 10
_VOCABULARY = SHAPES["tiny"].vocabulary
_PAGE_MIB = 4096 / 2**20

KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"top_p": 0.9, "top_k": 40},
    {"n": 3, "min_p": 0.05},
    {"frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {7: 2.0}},
    {"stop": ("ab", "\n"), "stop_regex": ("[0-9]{3}",), "min_tokens": 2},
    {"grammar": "start: /[a-z]{3,20}/"},
    {"grammar": 'start: "{" /[0-9]+/ ", the rest is forced" /[a-z]/ "}"'},
    {"grammar": "start: nothing"},
    {"deadline": 0.0},
    {"aborted": True, "max_tokens": 200},
)


@dataclass(frozen=True, slots=True)
class Row:
    """``mib`` of resident memory and live Python ``objects`` after so many requests."""

    requests: int
    mib: float
    objects: int


class Campaign:
    """Keeps a started engine busy and counts how requests end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._room = threading.Semaphore(_IN_FLIGHT)
        self._served = 0
        self.ended = 0
        self.failed = 0
        self._broken: BaseException | None = None
        self._draw = random.Random(0)  # noqa: S311 - requests, not secrets

    def start(self) -> None:
        self._engine.start(self._on_outputs, self._on_fatal)

    def serve(self, count: int) -> None:
        """Submit ``count`` requests as there is room, and wait until all have ended."""
        for _ in range(count):
            self._acquire()
            number, self._served = self._served, self._served + 1
            kind = KINDS[number % len(KINDS)]
            request = self._request(number, kind)
            self._engine.submit(request)
            if kind.get("aborted"):
                time.sleep(1e-3 * (number % 3))
                self._engine.abort(request.request_id)
                self._room.release()
        for _ in range(_IN_FLIGHT):
            self._acquire()
        self._room.release(_IN_FLIGHT)

    def _request(self, number: int, kind: dict[str, Any]) -> Request:
        params = {"max_tokens": 8, "seed": number, **kind}
        grammar, deadline = params.pop("grammar", None), params.pop("deadline", None)
        params.pop("aborted", None)
        length = self._draw.randrange(1, 120)
        common = list(range(1, 65)) if number % 4 == 0 else []
        prompt = common + self._draw.choices(range(1, _VOCABULARY), k=length)
        return Request(
            str(number),
            (tuple(prompt),),
            SamplingParams(**params),
            grammar,
            priority=number % 3,
            organization=str(number // 50),
            deadline=deadline,
        )

    def _acquire(self) -> None:
        if not self._room.acquire(timeout=60) or self._broken is not None:
            raise RuntimeError("the engine does not answer") from self._broken

    def _on_outputs(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            if output.finished:
                self.ended += 1
                self.failed += output.error is not None
                # An aborted request may end before its abort arrives, and gave its place back.
                if not KINDS[int(output.request_id) % len(KINDS)].get("aborted"):
                    self._room.release()

    def _on_fatal(self, error: BaseException) -> None:
        self._broken = error
        self._room.release(_IN_FLIGHT)


def measure(campaign: Campaign, requests: int) -> list[Row]:
    rows = []
    for part in range(1, _ROWS + 1):
        campaign.serve(requests // _ROWS)
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_MIB
        rows.append(Row(part * requests // _ROWS, resident, len(gc.get_objects())))
    return rows


def growth(rows: Sequence[Row]) -> tuple[float, int]:
    """MiB and objects between the end of the first fifth and the end."""
    settled = rows[len(rows) // 5 - 1]
    return rows[-1].mib - settled.mib, rows[-1].objects - settled.objects


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--most-mib", type=float, default=8.0, help="growth that is not flat")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # tiny products gain nothing from more
    engine = make_engine(
        SHAPES["tiny"],
        "cpu",
        "float32",
        max_num_seqs=16,
        max_num_batched_tokens=64,
        kv_cache_bytes=2**18,
        num_threads=1,
    )
    campaign = Campaign(engine)
    campaign.start()
    start = time.perf_counter()
    rows = measure(campaign, args.requests)
    elapsed = time.perf_counter() - start
    stats = engine.stats()
    engine.stop()
    print(f"{'requests':>9} {'MiB':>8} {'objects':>9}")
    for row in rows:
        print(f"{row.requests:>9} {row.mib:>8.1f} {row.objects:>9}")
    print(
        f"{stats.steps} steps in {elapsed:.0f} s, {campaign.failed} requests that had to fail, "
        f"{stats.preemptions} preemptions, {stats.kv_blocks_used} blocks still held"
    )
    mib, objects = growth(rows)
    print(f"growth after the first fifth: {mib:+.1f} MiB, {objects:+d} objects")
    return int(mib > args.most_mib or stats.kv_blocks_used > 0)


if __name__ == "__main__":
    sys.exit(main())
