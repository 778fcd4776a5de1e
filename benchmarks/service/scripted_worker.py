"""An engine worker whose engine is a script instead of a model: everything around it is real.

    python -m benchmarks.service.scripted_worker --model ID --step 0.005

It serves a model of models.toml to the installation that the environment names, as `manage.py
engine_worker` does. In every step, it gives each running sequence one token, which is a function of
seed, choice and position, so that an interrupted run continues with the same tokens.
"""

import argparse
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import django
from django.conf import settings

from completions.catalog import entries
from completions.contract.usage import Usage
from workers.engine.core.output import ChoiceDelta, RequestOutput
from workers.engine.core.request import Request
from workers.engine.exceptions import EngineOverloaded
from workers.engine.stats import EngineStats
from workers.engine.text.finish import FinishReason

MAX_WAITING = 1024
HANG = 666
"""A prompt that is this one token causes a step that never ends."""


def token(seed: int, choice: int, position: int) -> int:
    """Return the token that the script generates."""
    return 32 + (seed * 31 + choice * 17 + position * 7) % 90


@dataclass(slots=True)
class _Running:
    request: Request
    generated: dict[int, int] = field(default_factory=dict)
    """Tokens of each choice so far."""


class ScriptedEngine:
    """Runs up to `max_num_seqs` requests at a time, of the highest priority first."""

    def __init__(self, max_num_seqs: int, step_seconds: float) -> None:
        self._max_num_seqs = max_num_seqs
        self._step_seconds = step_seconds
        self._lock = threading.Condition()
        self._waiting: deque[_Running] = deque()
        self._running: list[_Running] = []
        self._stopping = False
        self._last_step_at = time.monotonic()

    def start(
        self,
        on_outputs: Callable[[list[RequestOutput]], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._on_outputs = on_outputs
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def submit(self, request: Request) -> None:
        choices = range(len(request.prompts) * request.sampling.n)
        generated = {index: len(request.published.get(index, ())) for index in choices}
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                raise EngineOverloaded
            self._waiting.append(_Running(request, generated))
            self._lock.notify()

    def abort(self, request_id: str) -> Usage | None:
        with self._lock:
            live = [*self._waiting, *self._running]
            self._waiting = deque(w for w in self._waiting if w.request.request_id != request_id)
            self._running = [r for r in self._running if r.request.request_id != request_id]
        return next((_count_usage(r) for r in live if r.request.request_id == request_id), None)

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            self._lock.notify()

    def stats(self) -> EngineStats:
        with self._lock:
            return EngineStats(
                forward="scripted",
                slots=self._max_num_seqs,
                running=len(self._running),
                waiting=len(self._waiting),
                kv_blocks_used=0,
                kv_blocks_idle=0,
                kv_blocks_total=0,
                block_size=0,
                loaded_adapters=0,
                preemptions=0,
                prefix_cache_queries=0,
                prefix_cache_hits=0,
                generated_tokens=0,
                forced_tokens=0,
                drafted_tokens=0,
                accepted_tokens=0,
                steps=0,
                last_step_at=self._last_step_at,
                step_seconds={},
            )

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                while not (self._waiting or self._running or self._stopping):
                    self._lock.wait()
                self._admit()
                outputs = [self._advance(running) for running in self._running]
                self._running = [
                    r for r, out in zip(self._running, outputs, strict=True) if not out.finished
                ]
                self._last_step_at = time.monotonic()
                stuck = any(r.request.prompts == ((HANG,),) for r in self._running)
            if stuck:
                threading.Event().wait()
            self._on_outputs(outputs)
            time.sleep(self._step_seconds)

    def _admit(self) -> None:
        """Like the real scheduler, a higher priority takes a slot from a lower one."""
        everyone = [*self._running, *self._waiting]
        everyone.sort(key=lambda each: -each.request.priority)  # stable: then by arrival
        self._running = everyone[: self._max_num_seqs]
        self._waiting = deque(everyone[self._max_num_seqs :])

    @staticmethod
    def _advance(running: _Running) -> RequestOutput:
        request, sampling = running.request, running.request.sampling
        deltas = []
        for index, position in running.generated.items():
            if position < sampling.max_tokens:
                made = token(sampling.seed, index, position)
                running.generated[index] = position + 1
                last = position + 1 == sampling.max_tokens
                finish = FinishReason.LENGTH if last else None
                deltas.append(ChoiceDelta(index, [made], chr(made), finish))
        finished = all(n >= sampling.max_tokens for n in running.generated.values())
        usage = _count_usage(running) if finished else None
        return RequestOutput(request.request_id, deltas, finished, None, usage)


def _count_usage(running: _Running) -> Usage:
    return Usage(sum(map(len, running.request.prompts)), sum(running.generated.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--step", type=float, default=0.005, help="seconds (default 0.005)")
    args = parser.parse_args()
    django.setup()
    from completions.jobs.sharding.shards import Layout
    from project import celery_app
    from workers.launch import WorkerOptions, run

    entry = entries.load(settings.MODELS_FILE, settings.MODELS_DIR).choose(args.model)
    options = WorkerOptions(
        redis=Layout.read(settings),
        device="cpu",
        dtype=None,
        shutdown_grace=settings.SHUTDOWN_GRACE,
        step_limit=settings.STEP_LIMIT,
    )
    engine = ScriptedEngine(entry.max_sequences, args.step)
    sys.exit(run(celery_app, entry, options, lambda *_: engine))


if __name__ == "__main__":
    main()
