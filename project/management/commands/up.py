"""`manage.py up`: the whole service in the foreground, under one supervisor."""

import contextlib
import io
import os
import resource
import time
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections

from completions.catalog import entries
from project.processes import logs, services, valkey
from project.processes.endpoint import Endpoint
from project.processes.supervisor import (
    AlreadyRunningError,
    Service,
    StopRequested,
    Supervisor,
)
from workers import checkpoints

VALKEY_PATIENCE = 60.0
"""Seconds for the embedded Valkey to load its append-only file."""
OPEN_FILES = 65536
"""Descriptors that each process may have, as far as the system lets: a connection takes one, and
shells and systemd start with 1024."""
REMINDER = 30.0
"""Seconds between two words about a service that is not ready yet."""


class Command(BaseCommand):
    help = "Run the service in the foreground: Valkey, workers and the web server."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=os.environ.get("PORT", "8000"))
        parser.add_argument(
            "--only",
            type=_names,
            default=services.NAMES,
            metavar="web,worker,...",
            help=f"some of {', '.join(services.NAMES)}; the embedded Valkey comes with each",
        )
        parser.add_argument(
            "--no-first-key",
            action="store_true",
            help="make no API key when there is none yet",
        )

    def handle(self, *args: Any, only: tuple[str, ...], **options: Any) -> None:
        self.secret: str | None = None
        os.umask(0o077)  # the database and the logs hold prompts and sessions; children inherit it
        _allow_connections()
        endpoint = Endpoint(options["host"], options["port"])
        try:
            models = entries.load(settings.MODELS_FILE, settings.MODELS_DIR)
            if {"web", "worker"} & set(only):
                _require_prepared(models)
            chosen = services.declare(models, endpoint, only)
            with (
                contextlib.suppress(StopRequested),
                Supervisor(settings.QUIRE_HOME, self._say) as supervisor,
            ):
                if "web" in only:
                    _require_free(endpoint)
                self._start(supervisor, chosen, first_key=not options["no_first_key"])
                if "web" in only:
                    self._wait_until_ready(supervisor, endpoint)
                    self._show(endpoint, models)
                supervisor.run()
        except AlreadyRunningError as error:
            raise CommandError(
                f"{settings.QUIRE_HOME} is in use: {error}. Stop that one, or set QUIRE_HOME "
                "and PORT to run another beside it."
            ) from error
        except (entries.CatalogError, valkey.ValkeyUnavailableError) as error:
            raise CommandError(str(error)) from error
        except DatabaseError as error:
            raise CommandError(f"the database cannot be used: {error}") from error
        self._say("stopped")

    def _start(self, supervisor: Supervisor, chosen: list[Service], first_key: bool) -> None:
        self._say(f"starting {', '.join(service.name for service in chosen)}")
        self._say(f"state and logs are in {settings.QUIRE_HOME}")
        # The worker needs no SQL and takes longest: its model loads while the database is prepared.
        early = [service for service in chosen if not services.needs_database(service)]
        for service in early:
            supervisor.start(service)
            if service.name == "valkey":
                self._wait_for_valkey(supervisor)
        late = chosen[len(early) :]
        if late:
            self._prepare_database(first_key)
        for service in late:
            supervisor.start(service)

    def _wait_for_valkey(self, supervisor: Supervisor) -> None:
        path = settings.VALKEY_SOCKET
        assert path is not None
        if not supervisor.wait_until(lambda: valkey.answers(path), VALKEY_PATIENCE):
            tail = logs.tail(supervisor.log("valkey"))
            raise CommandError(f"valkey does not answer. The end of its log:\n{tail}")

    def _prepare_database(self, first_key: bool) -> None:
        call_command("migrate", interactive=False, verbosity=0)
        if first_key:
            self._make_first_key()
        _close_connections()

    def _make_first_key(self) -> None:
        if apps.get_model("completions", "ApiKey").objects.active().exists():
            return
        printed = io.StringIO()
        call_command("create_api_key", "demo", stdout=printed)
        self.secret = printed.getvalue().strip()
        self._write(f"\nThe first API key, shown this once:\n\n{self.secret}\n")

    def _wait_until_ready(self, supervisor: Supervisor, endpoint: Endpoint) -> None:
        started = time.monotonic()
        while not supervisor.wait_until(endpoint.is_ready, REMINDER, interval=0.25):
            self._say(f"not ready after {time.monotonic() - started:.0f} s")
            for name in supervisor.failing():
                self._say(f"the end of {name}.log:\n{logs.tail(supervisor.log(name))}")
        self._say(f"ready after {time.monotonic() - started:.1f} s: {endpoint.url}")

    def _show(self, endpoint: Endpoint, models: entries.Catalog) -> None:
        command = endpoint.curl(self.secret or "$QUIRE_API_KEY", next(iter(models)).id)
        self._write(f"\nTry it (Ctrl-C stops everything):\n\n{command}\n")
        if not self.secret:
            self._write("A key: python manage.py create_api_key NAME\n")

    def _say(self, line: str) -> None:
        self._write(f"{time.strftime('%H:%M:%S')} {line}")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            self.stdout.write(text)
            self.stdout.flush()


def _allow_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # some systems let less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _close_connections() -> None:
    """None is needed while the children run; PostgreSQL's pool would keep threads as well."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        close_pool = getattr(connection, "close_pool", None)
        if close_pool:
            close_pool()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in services.NAMES]
    if unknown:
        raise ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(services.NAMES)}")
    return names


def _require_prepared(models: entries.Catalog) -> None:
    missing = [entry for entry in models if not checkpoints.is_prepared(entry)]
    if missing:
        listed = "\n".join(f"  {entry.id} in {entry.folder}" for entry in missing)
        raise CommandError(
            f"not on this machine yet, or not as models.toml pins it:\n{listed}\n"
            "Run `make`, or `python manage.py prepare_model`, then start again."
        )


def _require_free(endpoint: Endpoint) -> None:
    try:
        endpoint.require_free()
    except OSError as error:
        raise CommandError(
            f"cannot listen on {endpoint.host}:{endpoint.port}: {error.strerror}. "
            "Set PORT to a free port."
        ) from error
