"""`manage.py up`: the whole service in the foreground, under one supervisor."""

import contextlib
import io
import os
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from completions.catalog import entries, model_files
from project.management import startup
from project.processes import logs, services
from project.processes.endpoint import Endpoint
from project.processes.supervisor import StopRequested, Supervisor

FIRST_REMINDER, REMINDER = 3.0, 30.0
"""Seconds until the first line about what a start waits for, and between two such lines."""
LARGEST_PORT = 65535
"""The resolver wraps larger numbers around to other ports."""


class Command(BaseCommand):
    help = "Run the service in the foreground: Valkey, workers and the web server."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=_parse_port, default=os.environ.get("PORT", "8000"))
        parser.add_argument(
            "--only",
            type=_parse_names,
            default=services.NAMES,
            metavar="web,worker,...",
            help=f"some of {', '.join(services.NAMES)}; the embedded Valkey comes with each",
        )

    def handle(self, *args: Any, only: tuple[str, ...], **options: Any) -> None:
        self.secret: str | None = None
        startup.prepare_process()
        endpoint = Endpoint(options["host"], options["port"])
        with startup.explain_errors():
            models = entries.load(settings.MODELS_FILE, settings.MODELS_DIR)
            if {"web", "worker"} & set(only):
                _require_prepared(models)
                for entry in models:  # or the service would start, and refuse all its requests
                    model_files.load(entry)
            chosen = services.list_services(models, endpoint, only)
            with (
                contextlib.suppress(StopRequested),
                Supervisor(settings.QUIRE_HOME, self._say) as supervisor,
            ):
                if "web" in only:
                    _require_free(endpoint)
                self._say(f"starting {', '.join(service.name for service in chosen)}")
                self._say(f"state and logs are in {settings.QUIRE_HOME}")
                startup.start(supervisor, chosen, self._make_first_key, self._say)
                if "web" in only:
                    self._wait_until_ready(supervisor, endpoint)
                    self._show(endpoint, models)
                supervisor.run()
        self._say("stopped")

    def _make_first_key(self) -> None:
        if apps.get_model("completions", "ApiKey").objects.active().exists():
            return
        printed = io.StringIO()
        call_command("create_api_key", "demo", stdout=printed)
        self.secret = printed.getvalue().strip()
        self._write(f"\nThe first API key (it is not shown again):\n\n{self.secret}\n")

    def _wait_until_ready(self, supervisor: Supervisor, endpoint: Endpoint) -> None:
        started, patience = time.monotonic(), FIRST_REMINDER
        while not supervisor.wait_until(endpoint.is_ready, patience, interval=0.25):
            patience = REMINDER
            reasons = explain_failures(endpoint.get_failures(), supervisor)
            self._say(f"not ready after {time.monotonic() - started:.0f} s: {reasons}")
            for name in supervisor.list_failing():
                self._say(f"the end of {name}.log:\n{logs.read_tail(supervisor.get_log(name))}")
        self._say(f"ready after {time.monotonic() - started:.1f} s: {endpoint.url}")

    def _show(self, endpoint: Endpoint, models: entries.Catalog) -> None:
        command = endpoint.make_curl(self.secret or "$QUIRE_API_KEY", next(iter(models)).id)
        self._write(f"\nTry it (Ctrl-C stops everything):\n\n{command}\n")
        self._write(f"Documentation: {endpoint.url}/docs")
        self._write(f"Admin: {endpoint.url}/admin/ (its first user: manage.py createsuperuser)\n")
        if not self.secret:
            self._write("A key: python manage.py create_api_key NAME\n")

    def _say(self, line: str) -> None:
        self._write(f"{time.strftime('%H:%M:%S')} {line}")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            self.stdout.write(text)
            self.stdout.flush()


def explain_failures(failures: Mapping[str, str], supervisor: Supervisor) -> str:
    """Return why the service is not ready, with what only this machine's operator may see."""
    reasons = dict(failures)
    for name, doing in (("web", "starts"), ("worker", "loads its model")):
        if name in reasons and supervisor.get_pid(name) and not supervisor.list_failing():
            reasons[name] = f"{doing} (log: {supervisor.get_log(name)})"
    if "redis" in reasons:
        reasons["redis"] += f" at {_make_address(settings.REDIS_URL)}"
    return "; ".join(f"{part}: {reason}" for part, reason in reasons.items())


def _make_address(url: str) -> str:
    """Return a URL without its user, password and options."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in services.NAMES]
    if unknown:
        raise ArgumentTypeError(
            f"{unknown[0]!r} is not a service; use some of {', '.join(services.NAMES)}"
        )
    return names


def _parse_port(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= LARGEST_PORT):
        raise ArgumentTypeError(f"{text!r} is not a port; use a number from 1 to {LARGEST_PORT}")
    return int(text)


def _require_free(endpoint: Endpoint) -> None:
    try:
        endpoint.require_free()
    except OSError as error:
        raise CommandError(
            f"cannot listen on {endpoint.host}:{endpoint.port}: {error.strerror}. "
            "Set PORT to a free port."
        ) from error


def _require_prepared(models: entries.Catalog) -> None:
    missing = startup.list_missing(models)
    if missing:
        folders = "\n".join(f"  {entry.id} in {entry.folder}" for entry in missing)
        raise CommandError(
            f"not on this machine yet, or not as models.toml pins it:\n{folders}\n"
            "Run `make`, or `python manage.py prepare_model`, then start again."
        )
