"""`manage.py demo`: start the whole service, send it one request of each kind, stop it."""

import contextlib
import io
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from completions.catalog import entries
from project.management import startup
from project.processes import logs, services
from project.processes.endpoint import Endpoint, free_port
from project.processes.supervisor import StopRequested, Supervisor

START_PATIENCE = 120.0
SHOW_PATIENCE = 600.0
PROGRESS = 2.0
"""Seconds between two lines while the model loads."""


class Command(BaseCommand):
    help = "Start the service on a free port, send real requests end to end, stop it."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        logging.disable(logging.INFO)  # what is worth seeing is printed
        startup.prepare_process()
        endpoint = Endpoint("127.0.0.1", free_port())
        with startup.explained():
            models = entries.load(settings.MODELS_FILE, settings.MODELS_DIR)
            if startup.missing(models):
                _prepare_models()
            self.started = time.monotonic()
            self._write("Starting Valkey, a worker with the model, the CPU worker, the web server")
            try:
                self._run(endpoint, models)
            except StopRequested:
                message = "interrupted; everything was stopped"
                raise CommandError(message, returncode=130) from None
        self._write(f"\nAll done and stopped, in {self._elapsed():.1f} s.")
        self._write("Next: `make serve` keeps it running.")

    def _run(self, endpoint: Endpoint, models: entries.Catalog) -> None:
        name = f"make-demo-{secrets.token_hex(4)}"
        printed = io.StringIO()

        def make_key() -> None:
            call_command("create_api_key", name, "--expires-in-days", "1", stdout=printed)

        chosen = services.declare(models, endpoint, services.NAMES)
        with _reports() as report, Supervisor(settings.QUIRE_HOME, report) as supervisor:
            try:
                startup.start(supervisor, chosen, make_key)
                key, model = printed.getvalue().strip(), next(iter(models)).id
                self._show(supervisor, endpoint, key, model)
            finally:
                if printed.getvalue():
                    quiet = {"stdout": io.StringIO(), "stderr": io.StringIO()}
                    call_command("revoke_api_key", name, **quiet)

    def _show(self, supervisor: Supervisor, endpoint: Endpoint, key: str, model: str) -> None:
        # Loading the clients takes a second, in which the model loads.
        from project.management.showcase import Showcase, ShowcaseError

        self._wait_until_ready(supervisor, endpoint)
        os.environ["NO_PROXY"] = endpoint.host  # these requests stay on this machine
        scenes = _Scenes(Showcase(endpoint.url, key, model, self._write).run)
        scenes.start()
        if not supervisor.wait_until(lambda: not scenes.is_alive(), SHOW_PATIENCE):
            raise CommandError(f"not done after {SHOW_PATIENCE:.0f} s.\n{_ends_of_logs()}")
        if isinstance(scenes.error, ShowcaseError):
            raise CommandError(f"{scenes.error}\n{_ends_of_logs()}") from scenes.error
        if scenes.error is not None:
            raise scenes.error

    def _wait_until_ready(self, supervisor: Supervisor, endpoint: Endpoint) -> None:
        while not supervisor.wait_until(endpoint.is_ready, PROGRESS, interval=0.1):
            waited = self._elapsed()
            if supervisor.failing():
                raise CommandError(f"the service did not start.\n{_ends_of_logs()}")
            if waited > START_PATIENCE:
                raise CommandError(f"not ready after {waited:.0f} s.\n{_ends_of_logs()}")
            self._write(f"   loading the model: {waited:.0f} s")
        self._write(f"   ready after {self._elapsed():.1f} s: {endpoint.url}")

    def _elapsed(self) -> float:
        return time.monotonic() - self.started

    def _write(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


class _Scenes(threading.Thread):
    """Sends the requests while the main thread supervises the processes that answer them."""

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._scenes = run
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._scenes()
        except Exception as error:  # noqa: BLE001 - raised again by the main thread
            self.error = error


def _prepare_models() -> None:
    """In a process of its own, whose memory is free again when the workers start."""
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "prepare_model"]
    if subprocess.run(command, check=False).returncode != 0:  # noqa: S603
        raise CommandError("the models cannot be prepared; the reason stands above")


@contextlib.contextmanager
def _reports() -> Iterator[Callable[[str], None]]:
    """What the supervisor reports goes into a log beside those of the services."""
    settings.LOG_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(settings.LOG_DIR / "up.log", "w", buffering=1) as log:
        yield lambda line: print(time.strftime("%H:%M:%S"), line, file=log)


def _ends_of_logs() -> str:
    paths: list[Path] = sorted(settings.LOG_DIR.glob("*.log"))
    ends = [f"--- the end of {path}:\n{logs.tail(path)}" for path in paths]
    return "\n".join(ends)
