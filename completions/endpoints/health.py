"""Liveness and readiness, for balancers and orchestrators: no key, no secrets."""

import asyncio
from collections.abc import Awaitable, Callable

from asgiref.sync import sync_to_async
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor
from redis.exceptions import OutOfMemoryError, RedisError
from rest_framework.response import Response

from completions.catalog import model_files
from completions.http import runtime
from completions.http.base import APIRequest, AsyncAPIView

PATIENCE = 3.0


class HealthView(AsyncAPIView):
    """The process answers."""

    authenticated = False

    async def get(self, request: APIRequest) -> Response:
        return Response({"status": "ok"})


class ReadyView(AsyncAPIView):
    """A completion submitted now would be run; 503 with what is missing otherwise."""

    authenticated = False

    async def get(self, request: APIRequest) -> Response:
        told = await _together()
        failures = {name: why for name, why in zip(_CHECKS, told, strict=True) if why}
        if failures:
            return Response({"status": "unavailable", "failures": failures}, status=503)
        return Response({"status": "ready"})


_asking: asyncio.Future[list[str]] | None = None
"""What the first of those who ask at the same time finds out for all: anybody may ask, and a crowd
of checks would be too late for each of them, so that a balancer would take the process away."""


async def _together() -> list[str]:
    global _asking
    while (asking := _asking) is not None and asking.get_loop() is asyncio.get_running_loop():
        await asyncio.wait([asking])
        if not asking.cancelled():
            return asking.result()
    _asking = mine = asyncio.get_running_loop().create_future()
    try:
        told = await asyncio.gather(*map(_patiently, _CHECKS.values()))
        mine.set_result(told)
        return told
    finally:  # without a result it is another's turn
        _asking = None
        mine.cancel()


async def _patiently(check: Callable[[], Awaitable[str]]) -> str:
    """Who asks has patience, too: what hangs is told instead of waited for."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await check()
    except TimeoutError:
        return f"no answer within {PATIENCE:.0f} s"


async def _running() -> str:
    closing = (await runtime.current()).is_closing
    return "this process is shutting down" if closing else ""


async def _redis() -> str:
    try:
        await runtime.ping()
    except OutOfMemoryError:
        return "takes no writes: it is at maxmemory"
    except (RedisError, OSError) as error:
        return f"does not answer ({type(error).__name__})"
    return ""


async def _worker() -> str:
    try:
        live = await runtime.live_models()
    except (RedisError, OSError):
        return "cannot be known without Redis"
    served = [entry.id for entry in model_files.served_models()]
    if live.intersection(served):
        return ""
    return f"none that takes jobs serves any of: {', '.join(served)}"


async def _database() -> str:
    try:
        return await sync_to_async(_migrated)()
    except Error as error:
        return f"does not answer ({type(error).__name__})"


_CHECKS: dict[str, Callable[[], Awaitable[str]]] = {
    "process": _running,
    "redis": _redis,
    "database": _database,
    "worker": _worker,
}
_migrations_applied = False
"""Once true it stays so: migrations are not taken back under a running server."""


def _migrated() -> str:
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
