"""One engine worker for several models, of which its memory holds one at a time.

The worker of the loaded model is a child process. To load another model, the swapper stops the
child as an operator would: running jobs end within the grace period or go back to the queue, where
they continue when their model is loaded again. The end of the process frees all of its memory.
"""

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import cast

from redis.exceptions import RedisError

from completions.jobs.new_job import Level
from completions.jobs.sharding.shards import SyncShards, run_each
from completions.jobs.store import SyncStore
from completions.jobs.workers import WorkerRecord, list_all_workers
from project.processes.supervisor import REFUSED, Backoff, make_death_signal
from project.processes.swap_policy import ModelState, choose

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 0.5
"""Seconds between two looks at what waits. Each marks the models as served, so that requests for
them wait instead of being refused."""
KILL_AFTER = 10.0
"""Seconds past the grace period after which a child is killed."""


class Swapper:
    """Runs until a stop signal, in the main thread. `make_command` returns the command that serves
    one model."""

    def __init__(
        self,
        shards: SyncShards,
        models: Sequence[str],
        make_command: Callable[[str], Sequence[str]],
        grace: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shards = shards
        self._states = {model: ModelState() for model in models}
        self._make_command = make_command
        self._grace = grace
        self._clock = clock
        self._backoff = Backoff()
        self._failures = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._model: str | None = None
        self._began_at = self._start_after = 0.0
        self._loaded_at: float | None = None
        """When the child sent its first heartbeat."""
        self._is_stopping = False

    def run(self) -> int:
        """Return the exit code: `REFUSED` if no model can be served as configured."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        try:
            while self._states and not self._is_stopping:
                self._turn()
                if not self._is_stopping:
                    time.sleep(LOOK_INTERVAL)
        finally:
            self._unload()
        return 0 if self._is_stopping else REFUSED

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_stopping = True

    def _turn(self) -> None:
        self._reap()
        if not self._states:
            return
        if (seen := self._look()) is None:
            return
        queues, workers = seen
        now, own = self._clock(), self._find_own(workers)
        if own is not None and self._loaded_at is None and self._model is not None:
            self._loaded_at, self._failures = now, 0
            self._states[self._model].load_seconds = now - self._began_at
            logger.info("loaded %s in %.1f s", self._model, now - self._began_at)
        elsewhere = {each.model for each in workers if each is not own and each.accepting}
        is_idle = own is not None and not own.facts.get("jobs")
        for (model, state), (level, waiting) in zip(self._states.items(), queues, strict=True):
            if model == self._model:
                is_idle = is_idle and level is None
            is_needed = model != self._model and model not in elsewhere
            state.observe(now, level, waiting, is_needed)
        if self._child is None:
            if now >= self._start_after:
                first = choose(now, None, 0.0, True, self._states)
                self._load(first or self._model or next(iter(self._states)))
        elif self._loaded_at is not None and (
            chosen := choose(now, self._model, self._loaded_at, is_idle, self._states)
        ):
            self._unload()
            self._load(chosen)

    def _look(self) -> tuple[list[tuple[Level | None, int]], list[WorkerRecord]] | None:
        """Say that the models are served. Return the most urgent level of which jobs wait for each
        with their number, and the live workers; None while Redis does not answer."""
        try:
            replies = run_each(self._shards, self._announce)
            queues = [_add_queues(each) for each in zip(*replies, strict=True)]
            return queues, list_all_workers(self._shards)
        except (RedisError, OSError) as error:
            logger.warning("cannot see which jobs wait: %s", error)
            return None

    def _announce(self, store: SyncStore) -> list[tuple[int, int]]:
        return cast("list[tuple[int, int]]", store.call("standby", *self._states))

    def _find_own(self, workers: Sequence[WorkerRecord]) -> WorkerRecord | None:
        if self._child is None:
            return None
        name = f"{socket.gethostname()}-{self._child.pid}-"
        return next((each for each in workers if each.id.startswith(name)), None)

    def _load(self, model: str) -> None:
        logger.info("loading %s", model)
        self._model, self._loaded_at, self._began_at = model, None, self._clock()
        self._child = subprocess.Popen(  # noqa: S603
            self._make_command(model),
            start_new_session=True,
            preexec_fn=make_death_signal(os.getpid()),
        )

    def _unload(self) -> None:
        """Stop the child as `up` would."""
        if self._child is None:
            return
        logger.info("unloading %s", self._model)
        self._child.terminate()
        kill_at = self._clock() + self._grace + KILL_AFTER
        while self._child.poll() is None:
            self._look()
            time.sleep(LOOK_INTERVAL / 5)
            if self._clock() >= kill_at:
                logger.error("the worker of %s has not stopped: killing it", self._model)
                self._child.kill()
        self._child = None

    def _reap(self) -> None:
        """Note the end of a child that nobody asked to end. A model that cannot be served as it is
        configured is left out; another start is tried after a while."""
        if self._child is None or (code := self._child.poll()) is None:
            return
        self._child = None
        assert self._model is not None
        if code == REFUSED:
            logger.error("%s cannot be served as it is configured: left out", self._model)
            del self._states[self._model]
            self._model = None
            return
        self._failures += 1
        delay = self._backoff.compute_delay(self._failures)
        self._start_after = self._clock() + delay
        logger.error(
            "the worker of %s ended with code %s: starting one in %g s", self._model, code, delay
        )


def _add_queues(queues: Iterable[tuple[int, int]]) -> tuple[Level | None, int]:
    """Return the most urgent level of which jobs of a model wait in any shard, and how many wait of
    that level in all."""
    waiting = [(level, count) for level, count in queues if level >= 0]
    if not waiting:
        return None, 0
    first = min(level for level, _ in waiting)
    return Level(first), sum(count for level, count in waiting if level == first)
