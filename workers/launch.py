"""Starts an engine worker: one model, its engine and its relay inside a Celery worker."""

import logging
import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery import Celery

from completions.catalog.entries import ModelEntry
from completions.jobs import tracing
from completions.jobs.connection import connect
from completions.jobs.execute import Execution
from completions.jobs.submit import LINES_PER_SEQUENCE

if TYPE_CHECKING:  # importing the relay loads numpy, and an engine torch
    from workers.engine.config import EngineConfig
    from workers.relay import EngineLike

    Load = Callable[["ModelEntry", "WorkerOptions"], EngineLike]

logger = logging.getLogger(__name__)

SPINS = "5000"
"""Rounds, some 0.1 ms, that OpenMP's threads wait awake between two loops. Its own 300,000 keep a
core busy through what a step does on one thread: the time in which the web process, Redis and
Celery can have it on a small machine."""
LOOK_AHEAD = 16
"""Messages taken beyond the engine's sequences and the lines of batches that wait for it, so that a
freed place never waits for Redis, and no live request behind a line: the engine knows who goes
first, Celery does not once it has handed a message over."""


RELAY_OVERTIME = 30.0
"""Seconds past the limit of a step after which not even the relay can be running: it waits for
Redis no longer than that."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What the installation decides, as opposed to the model."""

    redis_url: str
    redis_prefix: str
    device: str
    dtype: str | None
    shutdown_grace: float
    step_limit: float = 120.0
    """Seconds that one step of the engine may take."""


def run(
    app: Celery,
    entry: ModelEntry,
    options: WorkerOptions,
    load: "Load | None" = None,
) -> int:
    """Serve one model until told to stop. Returns the exit code. `load` makes another engine."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # OpenMP reads it when torch is loaded
    from workers.pool import EnginePool, FollowDrain, RefreshVisibility

    tracing.start("quire-worker")

    class Pool(EnginePool):
        relay_factory = staticmethod(lambda: _relay(entry, options, load or _load))
        shutdown_grace = options.shutdown_grace
        queue = entry.queue

    app.conf.imports = ["workers.tasks"]
    app.steps["consumer"].update((RefreshVisibility, FollowDrain))
    worker: Any = app.Worker(
        hostname=f"{entry.id}@{socket.gethostname()}",
        pool_cls=Pool,
        queues=[entry.queue],
        concurrency=(1 + LINES_PER_SEQUENCE) * entry.max_num_seqs + LOOK_AHEAD,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        optimization="default",
        loglevel="INFO",
        quiet=True,  # no banner among the log lines
    )
    worker.start()
    tracing.stop()
    return int(worker.exitcode or 0)


def check_device(wanted: str) -> None:
    """Raises ValueError if a GPU is asked for that is not there; torch loads only then."""
    if wanted.startswith("cuda"):
        from workers.engine.model.device import resolve_device

        resolve_device(wanted)


def _load(entry: ModelEntry, options: WorkerOptions) -> "EngineLike":
    """Ends the process where the settings ask for what this machine or model does not have."""
    from workers.engine.engine import Engine
    from workers.engine.exceptions import UnsupportedAdapter, UnsupportedModel

    logger.info("loading %s from %s onto device %s", entry.id, entry.folder, options.device)
    try:
        return Engine.from_pretrained(entry.folder, _config(entry, options))
    except (OSError, ValueError, UnsupportedModel, UnsupportedAdapter) as error:
        logger.critical("%s cannot be served: %s", entry.id, error)
        raise SystemExit(1) from error


def _config(entry: ModelEntry, options: WorkerOptions) -> "EngineConfig":
    """Raises ValueError."""
    from workers.engine.config import EngineConfig

    return EngineConfig(
        device=options.device,
        dtype=options.dtype or entry.dtype,
        max_model_len=entry.max_model_len,
        max_num_seqs=entry.max_num_seqs,
        max_num_batched_tokens=entry.max_num_batched_tokens,
        kv_cache_bytes=entry.kv_cache_bytes,
        adapters=entry.adapters,
        stop_token_ids=entry.stop_token_ids,
        logit_processors=entry.logit_processors,
        repetition_penalty_scope=entry.repetition_penalty_scope,
    )


def _relay(
    entry: ModelEntry,
    options: WorkerOptions,
    load: "Load",
) -> Any:
    from workers.relay import Relay
    from workers.watchdog import Watchdog

    engine = load(entry, options)
    worker_id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    execution = Execution(connect(options.redis_url), options.redis_prefix, worker_id)
    return Relay(
        engine,
        execution,
        entry.id,
        on_broken=lambda _error: os._exit(70),
        step_limit=options.step_limit,
        stream_interval=entry.stream_interval,
        on_turn=Watchdog(options.step_limit + RELAY_OVERTIME).feed,
    )
