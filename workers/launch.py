"""Starts an engine worker: the engine of one model and its relay, inside a Celery worker."""

import errno
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery

from completions.catalog.entries import CPU_SLOTS, ModelEntry
from completions.contract import tracing
from completions.jobs.execute import Execution
from completions.jobs.sharding.execution import ShardedExecution
from completions.jobs.sharding.shards import Layout
from completions.jobs.workers import new_worker_id
from workers.room import LOOK_AHEAD, MAX_HELD_BYTES

if TYPE_CHECKING:  # importing the relay loads numpy, and an engine torch
    from workers.engine.config import EngineConfig
    from workers.engine_protocol import EngineLike

    Load = Callable[["ModelEntry", "WorkerOptions"], EngineLike]

REFUSED = os.EX_CONFIG
"""The exit code of a worker that cannot run before its configuration or its model changes."""

logger = logging.getLogger(__name__)

_NO_MEMORY = "can't allocate memory"
"""What torch says where main memory is short; the exception is a plain RuntimeError."""

_NAMES_NOTHING = (None, errno.ENOENT, errno.ENOTDIR)
"""Numbers of errors that are the fault of a name in the settings, or that transformers raises
without asking the system."""

SPINS = "5000"
"""Rounds that OpenMP's threads spin between two loops, about 0.1 ms. While a step runs on one
thread, the default of 300,000 keeps cores busy that the web process, Redis and Celery need on a
small machine."""
CPU_TOKENS = 512
"""The default of `max_num_batched_tokens` on a CPU. Larger steps are no faster: a prompt of 7,000
tokens takes the same CPU time in chunks of 512, 1,024 and 2,048."""
GPU_SLOTS = 256
GPU_TOKENS = 4096
"""The same on a GPU, where launching a step of 512 tokens takes longer than computing it."""
PREFETCHED_PER_SLOT = 2
"""Messages taken per slot of the engine. A message only says that a job waits; the relay claims the
one whose turn it is (`lua/take.lua`), so it holds messages of jobs that run and of some that wait.
Each is acknowledged after its own job."""
RELAY_SILENCE = 30.0
"""Seconds past the limit of a step after which the relay must be stuck too, since it never waits
longer for Redis."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Settings of the installation. The model's settings are in its ModelEntry."""

    redis: Layout
    device: str
    dtype: str | None
    shutdown_grace: float
    step_limit: float = 120.0
    """Seconds after which a step of the engine is stuck."""
    step_ms: float = 80.0
    """Milliseconds that a step takes at most while somebody reads tokens as they come."""
    max_held_bytes: int = MAX_HELD_BYTES
    """Bytes of claimed requests that the worker holds on each level."""
    adapter_store: Path | None = None
    """The folder with the files of registered adapters."""
    max_adapter_bytes: int = 2 * 1024**3
    """Memory for registered adapters."""


def run(
    app: Celery,
    entry: ModelEntry,
    options: WorkerOptions,
    load: "Load | None" = None,
) -> int:
    """Serve one model until the process gets a signal. Returns the exit code. `load` replaces the
    function that loads the engine."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # OpenMP reads it when torch is loaded
    # Torch's allocator for GPUs: prompts of all lengths would cut its memory into pieces.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    from workers.messages import DropForeign, NameEventLoop, join_acknowledgements
    from workers.pool import EnginePool, FollowDrain, RefreshVisibility
    from workers.wake_on_signal import WakeOnSignal

    slots, _ = sizes(entry, "cpu" if load else _device_type(options.device))

    tracing.start("quire-worker")

    class Pool(EnginePool):
        relay_factory = staticmethod(lambda: _relay(entry, options, load or load_engine))
        shutdown_grace = options.shutdown_grace
        queue = entry.queue

    join_acknowledgements()
    app.conf.imports = ["workers.tasks"]
    app.steps["consumer"].update(
        (RefreshVisibility, FollowDrain, WakeOnSignal, DropForeign, NameEventLoop)
    )
    worker: Any = app.Worker(
        hostname=f"{entry.id}@{socket.gethostname()}",
        pool_cls=Pool,
        queues=[entry.queue],
        concurrency=PREFETCHED_PER_SLOT * (slots + LOOK_AHEAD),
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


def sizes(entry: ModelEntry, device_type: str) -> tuple[int, int]:
    """Return `max_num_seqs` and `max_num_batched_tokens` of an engine on `cpu` or `cuda`."""
    slots, tokens = (CPU_SLOTS, CPU_TOKENS) if device_type == "cpu" else (GPU_SLOTS, GPU_TOKENS)
    slots = entry.max_num_seqs or slots
    return slots, entry.max_num_batched_tokens or max(tokens, 2 * slots)


def _device_type(name: str) -> str:
    """Return `cpu` or `cuda`. Raises ValueError for an absent GPU."""
    from workers.engine.backends.device import resolve_device

    return resolve_device(name).type


def check_device(name: str) -> None:
    """Raise ValueError if `name` is an absent GPU. torch is loaded only to look for one."""
    if name.startswith("cuda"):
        _device_type(name)


def load_engine(entry: ModelEntry, options: WorkerOptions) -> "EngineLike":
    """Load the engine. Ends the process if this machine or model cannot do what is configured: with
    the code ``REFUSED`` if it never can, and with 1 if a later start may succeed."""
    import torch

    from workers.engine.build import build_engine
    from workers.engine.exceptions import RankLost, UnsupportedAdapter, UnsupportedModel

    logger.info("loading %s from %s onto device %s", entry.id, entry.folder, options.device)
    try:
        return build_engine(entry.folder, _config(entry, options))
    except (
        OSError,
        ValueError,
        MemoryError,
        torch.OutOfMemoryError,
        UnsupportedModel,
        UnsupportedAdapter,
        RankLost,
    ) as error:
        logger.critical("%s cannot be served: %s", entry.id, error)
        raise SystemExit(1 if _may_pass(error, entry.folder) else REFUSED) from error


def _may_pass(error: BaseException, folder: Path) -> bool:
    """Return whether what failed may succeed without a change of the configuration or the model:
    memory was short, a rank was lost, or the system could not read a file, as where a mount is
    missing."""
    import torch

    from workers.engine.exceptions import RankLost, TooLarge

    if not (folder / "config.json").is_file():
        return True
    passing = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError, RankLost, TooLarge)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, passing) or _NO_MEMORY in str(cause):
            return True
        if isinstance(cause, OSError) and cause.errno not in _NAMES_NOTHING:
            return True
        cause = cause.__cause__
    return False


def _config(entry: ModelEntry, options: WorkerOptions) -> "EngineConfig":
    """Return the engine's settings. Raises ValueError."""
    from workers.engine.config import EngineConfig

    slots, tokens = sizes(entry, _device_type(options.device))
    return EngineConfig(
        device=options.device,
        dtype=options.dtype or entry.dtype,
        max_model_len=entry.max_model_len,
        max_num_seqs=slots,
        max_num_batched_tokens=tokens,
        step_ms=options.step_ms,
        tensor_parallel_size=entry.tensor_parallel_size,
        rank_timeout=options.step_limit,
        gpu_memory_utilization=entry.gpu_memory_utilization,
        enforce_eager=entry.enforce_eager,
        async_scheduling=entry.async_scheduling,
        grammar_threads=entry.grammar_threads,
        kv_cache_bytes=entry.kv_cache_bytes,
        adapters=entry.adapters,
        adapter_store=options.adapter_store,
        max_adapter_bytes=options.max_adapter_bytes,
        stop_token_ids=entry.stop_token_ids,
        logit_processors=entry.logit_processors,
        repetition_penalty_scope=entry.repetition_penalty_scope,
        speculation=entry.speculation,
    )


def _relay(
    entry: ModelEntry,
    options: WorkerOptions,
    load: "Load",
) -> Any:
    from workers.relay import Relay
    from workers.watchdog import Watchdog

    engine = load(entry, options)
    stores, worker_id = options.redis.connect().stores, new_worker_id()
    execution = Execution(stores[0], worker_id)
    if len(stores) > 1:
        execution = ShardedExecution(stores, worker_id)
    return Relay(
        engine,
        execution,
        entry.id,
        on_broken=lambda _error: os._exit(70),
        step_limit=options.step_limit,
        stream_interval=entry.stream_interval,
        on_turn=Watchdog(options.step_limit + RELAY_SILENCE).feed,
        max_held_bytes=options.max_held_bytes,
    )
