"""Liveness and readiness probes for load balancers and orchestrators. They need no key."""

import asyncio
from collections.abc import Awaitable, Callable

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor
from redis.exceptions import OutOfMemoryError, RedisError

from completions.catalog import model_files
from completions.http import runtime
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.jobs.operate import NEARLY_FULL, is_nearly_full

CHECK_SECONDS = 3.0
"""Seconds after which a check without a result counts as failed."""


class HealthView(AsyncAPIView):
    """Report that the process answers."""

    authenticated = False

    async def get(self, request: APIRequest) -> JSONResponse:
        return JSONResponse({"status": "ok"})


class ReadyView(AsyncAPIView):
    """Report whether a completion submitted now would run; otherwise 503 with the reasons."""

    authenticated = False

    async def get(self, request: APIRequest) -> JSONResponse:
        if failures := await find_failures():
            return JSONResponse({"status": "unavailable", "failures": failures}, status=503)
        return JSONResponse({"status": "ready"})


_running_checks: asyncio.Task[dict[str, str]] | None = None


async def find_failures() -> dict[str, str]:
    """Return the reasons, by check, why the service is not ready. Concurrent callers share one run,
    so that many probes do not delay each other."""
    global _running_checks
    task, loop = _running_checks, asyncio.get_running_loop()
    if task is None or task.done() or task.get_loop() is not loop:
        task = _running_checks = loop.create_task(_run_checks())
    return await asyncio.shield(task)


async def _run_checks() -> dict[str, str]:
    reasons = await asyncio.gather(*map(_run_limited, _CHECKS.values()))
    return {name: reason for name, reason in zip(_CHECKS, reasons, strict=True) if reason}


async def _run_limited(check: Callable[[], Awaitable[str]]) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check()
    except TimeoutError:
        return f"no answer within {CHECK_SECONDS:.0f} s"


async def _check_running() -> str:
    closing = (await runtime.get_runtime()).is_closing
    return "this process is shutting down" if closing else ""


async def _check_redis() -> str:
    try:
        await runtime.ping()
    except OutOfMemoryError:
        return "refuses writes: it has reached maxmemory"
    except (RedisError, OSError) as error:
        return f"does not answer ({type(error).__name__})"
    return ""


async def _check_worker() -> str:
    try:
        live = await runtime.list_live_models()
    except (RedisError, OSError):
        return "unknown, because Redis does not answer"
    served = [entry.id for entry in model_files.load_catalog()]
    if live.keys() & set(served):
        return ""
    return f"no worker that takes new jobs serves any of: {', '.join(served)}"


async def _check_queue() -> str:
    """Return the queue is full: it refuses a call or a stream."""
    try:
        load = await runtime.measure_queue()
    except (RedisError, OSError):
        return "unknown, because Redis does not answer"
    memory, bounds = load.memory, runtime.make_byte_bounds(load.memory["maxmemory"])
    if is_nearly_full(memory):
        used, limit = memory["used_memory"], memory["maxmemory"]
        return f"full: Redis uses {used} of {limit} bytes of memory"
    for count, maximum, what in (
        (load.jobs, settings.MAX_QUEUED_JOBS, "jobs"),
        (load.interactive_jobs, settings.MAX_QUEUED_INTERACTIVE, "calls and streams"),
        (load.bytes, int(bounds.total * NEARLY_FULL), "bytes of requests"),
        (load.interactive_bytes, int(bounds.of_class * NEARLY_FULL), "bytes of calls and streams"),
    ):
        if count >= maximum:
            return f"full: it holds {count} {what}, and is full from {maximum} on"
    return ""


async def _check_database() -> str:
    try:
        return await sync_to_async(_check_migrated)()
    except Error as error:
        return f"does not answer ({type(error).__name__})"


_CHECKS: dict[str, Callable[[], Awaitable[str]]] = {
    "process": _check_running,
    "redis": _check_redis,
    "database": _check_database,
    "worker": _check_worker,
    "queue": _check_queue,
}
_migrations_applied = False
"""Whether migrations are applied. Never reset: nobody reverts them under a running server."""


def _check_migrated() -> str:
    global _migrations_applied
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    if not _migrations_applied:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
        if missing:
            return f"{len(missing)} migrations are not applied; run `python manage.py migrate`"
        _migrations_applied = True
    return ""
