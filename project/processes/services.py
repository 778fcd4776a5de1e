"""The services that `up` starts, declared from the settings."""

import os
import sys
from collections.abc import Collection

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

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
KEEP_ALIVE = 75
"""Seconds that a connection stays open between two requests. Where both ends close it at the same
age, a request can meet a closed connection. openai's client closes it after 5 s, which is uvicorn's
default too; nginx and load balancers after 60 s."""
# Without proxy headers: project/asgi.py reads them, for QUIRE_TRUSTED_PROXIES.
_UVICORN = (
    "-m uvicorn project.asgi:application --http project.server.http_protocol:Protocol "
    "--ws project.server.web_socket_protocol:WebSocketProtocol --loop uvloop --lifespan on "
    "--no-access-log --no-server-header --no-use-colors "
    f"--timeout-graceful-shutdown {WEB_GRACE} --timeout-keep-alive {KEEP_ALIVE} --no-proxy-headers "
    "--workers 1"  # or uvicorn would start as many as WEB_CONCURRENCY says
)


def list_services(catalog: Catalog, endpoint: Endpoint, only: Collection[str]) -> list[Service]:
    """Return the services named in `only`, in starting order.

    The embedded Valkey is always included, and first, unless REDIS_URL names a server. Raises
    ValkeyUnavailableError, and ImproperlyConfigured for variables that change uvicorn.
    """
    chosen: list[Service] = []
    if settings.VALKEY_SOCKET:
        chosen.append(valkey.make_service(settings.QUIRE_HOME / "valkey", settings.VALKEY_SOCKET))
    if "worker" in only:
        ids = [entry.id for entry in catalog]
        served = (
            [["--models", ",".join(ids)]] if _is_swapping(ids) else [["--model", i] for i in ids]
        )
        for number, models in enumerate(served, start=1):
            name = "worker" if number == 1 else f"worker-{number}"
            command = ["manage.py", "engine_worker", *models]
            chosen.append(_make_service(name, command, settings.SHUTDOWN_GRACE + 15, _WORKERS))
    if "cpu-worker" in only:
        chosen.append(_make_service("cpu-worker", ["manage.py", "cpu_worker"], 20, _WORKERS))
    if "web" in only:
        command = [*_UVICORN.split(), "--host", endpoint.host, "--port", str(endpoint.port)]
        _refuse_options_of_uvicorn(command)
        chosen.append(_make_service("web", command, WEB_GRACE + 5, _WEB))
    return chosen


def _is_swapping(models: Collection[str]) -> bool:
    return settings.SWAP_MODELS and len(models) > 1


def _refuse_options_of_uvicorn(command: Collection[str]) -> None:
    """Refuse variables by which uvicorn's command line would take other options than ours, for
    example a socket to listen on. Ours win where both are given."""
    for name in os.environ:
        option = "--" + name.removeprefix("UVICORN_").lower().replace("_", "-")
        if name.startswith("UVICORN_") and option not in command:
            raise ImproperlyConfigured(f"{name} is set: it changes the web server; unset it")


def needs_database(service: Service) -> bool:
    """Return whether a service uses SQL. `list_services` puts these services last."""
    return service.name in ("cpu-worker", "web")


def _make_service(name: str, command: list[str], grace: float, stage: int) -> Service:
    env = {
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "QUIRE_HOME": str(settings.QUIRE_HOME),
        "PYTHONUNBUFFERED": "1",
    }
    return Service(name, [sys.executable, *command], env, settings.BASE_DIR, grace, stage)
