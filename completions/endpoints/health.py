"""Liveness and readiness probes for load balancers and orchestrators. They need no key."""

import asyncio
from collections.abc import Awaitable, Callable

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor
from redis.exceptions import OutOfMemoryError, RedisError

from completions.catalog import model_files
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.http.process import WebProcess
from completions.http.web_shard import make_byte_bounds
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
        if failures := await find_failures(request.process):
            return JSONResponse({"status": "unavailable", "failures": failures}, status=503)
        return JSONResponse({"status": "ready"})


async def find_failures(process: WebProcess) -> dict[str, str]:
    """Return the reasons, by check, why the service is not ready. Concurrent callers share one run,
    so that many probes do not delay each other."""
    if process.readiness is None or process.readiness.done():
        process.readiness = asyncio.create_task(_run_checks(process))
    return await asyncio.shield(process.readiness)


async def _run_checks(process: WebProcess) -> dict[str, str]:
    reasons = await asyncio.gather(*(_run_limited(check(process)) for check in _CHECKS.values()))
    return {name: reason for name, reason in zip(_CHECKS, reasons, strict=True) if reason}


async def _run_limited(check: Awaitable[str]) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check
    except TimeoutError:
        return f"no answer within {CHECK_SECONDS:.0f} s"


async def _check_running(process: WebProcess) -> str:
    return "this process is shutting down" if process.is_closing else ""


async def _check_redis(process: WebProcess) -> str:
    try:
        await process.ping()
    except OutOfMemoryError:
        return "refuses writes: it has reached maxmemory"
    except (RedisError, OSError) as error:
        return f"does not answer ({type(error).__name__})"
    return ""


async def _check_worker(process: WebProcess) -> str:
    try:
        live = await process.list_live_models()
    except (RedisError, OSError):
        return "unknown, because Redis does not answer"
    served = [entry.id for entry in model_files.load_catalog()]
    if (live.loaded.keys() | live.standby) & set(served):
        return ""
    return f"no worker that takes new jobs serves any of: {', '.join(served)}"


async def _check_queue(process: WebProcess) -> str:
    """Return the queue is full: it refuses a call or a stream."""
    try:
        load = await process.measure_queue()
    except (RedisError, OSError):
        return "unknown, because Redis does not answer"
    memory, bounds = load.memory, make_byte_bounds(load.memory["maxmemory"])
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


async def _check_database(process: WebProcess) -> str:
    try:
        return await sync_to_async(_check_migrated)(process)
    except Error as error:
        return f"does not answer ({type(error).__name__})"


_CHECKS: dict[str, Callable[[WebProcess], Awaitable[str]]] = {
    "process": _check_running,
    "redis": _check_redis,
    "database": _check_database,
    "worker": _check_worker,
    "queue": _check_queue,
}


def _check_migrated(process: WebProcess) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    if not process.is_migrated:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
        if missing:
            return f"{len(missing)} migrations are not applied; run `python manage.py migrate`"
        process.is_migrated = True
    return ""
