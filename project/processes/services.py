"""The services that `up` starts, declared from the settings."""

import sys
from collections.abc import Collection

from django.conf import settings

from completions.catalog.entries import Catalog
from project.processes import valkey
from project.processes.endpoint import Endpoint
from project.processes.supervisor import Service

NAMES = ("valkey", "worker", "cpu-worker", "web")
_WORKERS, _WEB = 1, 2
"""Stages of stopping, highest first; Valkey's is 0. The web server stops while workers still finish
responses, and workers stop while Valkey still takes their jobs back."""
WEB_GRACE = 20
"""Seconds for open responses to end after SIGTERM."""


def declare(catalog: Catalog, endpoint: Endpoint, only: Collection[str]) -> list[Service]:
    """Return the services named in `only`, in starting order.

    The embedded Valkey is always included, and first, unless REDIS_URL names a server. Raises
    ValkeyUnavailableError.
    """
    chosen: list[Service] = []
    if settings.VALKEY_SOCKET:
        chosen.append(valkey.service(settings.QUIRE_HOME / "valkey", settings.VALKEY_SOCKET))
    if "worker" in only:
        chosen += _workers(catalog)
    if "cpu-worker" in only:
        command = ["manage.py", "cpu_worker"]
        chosen.append(_python("cpu-worker", command, grace=20, stage=_WORKERS))
    if "web" in only:
        chosen.append(_web(endpoint))
    return chosen


def needs_database(service: Service) -> bool:
    """Return whether a service uses SQL. `declare` puts these services last."""
    return service.name in ("cpu-worker", "web")


def _workers(catalog: Catalog) -> list[Service]:
    """One engine worker per model in models.toml: worker, worker-2, ..."""
    return [
        _python(
            "worker" if number == 1 else f"worker-{number}",
            ["manage.py", "engine_worker", "--model", entry.id],
            grace=settings.SHUTDOWN_GRACE + 10,
            stage=_WORKERS,
        )
        for number, entry in enumerate(catalog, start=1)
    ]


def _web(endpoint: Endpoint) -> Service:
    options = ["--host", endpoint.host, "--port", str(endpoint.port)]
    options += ["--loop", "uvloop", "--ws", "none"]
    options += ["--http", "project.server.http_protocol:Protocol"]
    options += ["--no-access-log", "--no-server-header", "--no-use-colors"]
    options += ["--timeout-graceful-shutdown", str(WEB_GRACE)]
    options += ["--no-proxy-headers"]  # project/asgi.py does, for QUIRE_TRUSTED_PROXIES
    arguments = ["-m", "uvicorn", "project.asgi:application", *options]
    return _python("web", arguments, grace=WEB_GRACE + 5, stage=_WEB)


def _python(name: str, arguments: list[str], grace: float, stage: int) -> Service:
    env = {
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "QUIRE_HOME": str(settings.QUIRE_HOME),
        "PYTHONUNBUFFERED": "1",
    }
    return Service(name, [sys.executable, *arguments], env, settings.BASE_DIR, grace, stage)
