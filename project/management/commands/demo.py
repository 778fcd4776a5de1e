"""`manage.py demo`: start the whole service, send it one request of each kind, stop it."""

import io
import logging
import os
import secrets
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from completions.catalog import entries
from project.management import startup
from project.processes import logs, services
from project.processes.endpoint import Endpoint, find_free_port
from project.processes.supervisor import StopRequested, Supervisor

START_PATIENCE = 120.0
SHOW_PATIENCE = 600.0
PROGRESS = 2.0
"""Seconds between two lines while the model loads."""


class Command(BaseCommand):
    help = "Start the service on a free port, send real requests end to end, stop it."
    requires_system_checks = ()

    def handle(self, *args: object, **options: object) -> None:
        logging.disable(logging.INFO)  # the user sees what this command writes
        startup.prepare_process()
        with startup.explain_errors():
            models = entries.load(settings.MODELS_FILE, settings.MODELS_DIR)
            if startup.list_missing(models):
                _prepare_models()
            self.started = time.monotonic()
            self._write(
                "Starting Valkey, a worker with the model, a background worker, the web server"
            )
            try:
                self._run(Endpoint("127.0.0.1", find_free_port()), models)
            except StopRequested:
                message = "interrupted; everything was stopped"
                raise CommandError(message, returncode=130) from None
        self._write(f"\nAll done and stopped, in {self._measure_elapsed():.1f} s.")
        self._write("Next: `make serve` keeps it running.")

    def _run(self, endpoint: Endpoint, models: entries.Catalog) -> None:
        name = f"make-demo-{secrets.token_hex(4)}"
        printed = io.StringIO()
        chosen = services.list_services(models, endpoint, services.NAMES)
        settings.LOG_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(settings.LOG_DIR / "up.log", "w", buffering=1) as log:

            def report(line: str) -> None:
                print(time.strftime("%H:%M:%S"), line, file=log)

            def make_key() -> None:
                call_command("create_api_key", name, "--expires-in-days", "1", stdout=printed)

            with Supervisor(settings.QUIRE_HOME, report) as supervisor:
                try:
                    startup.start(supervisor, chosen, make_key, report)
                    key, model = printed.getvalue().strip(), next(iter(models)).id
                    self._show(supervisor, endpoint, key, model)
                finally:
                    if printed.getvalue():
                        quiet = {"stdout": io.StringIO(), "stderr": io.StringIO()}
                        call_command("revoke_api_key", name, **quiet)

    def _show(self, supervisor: Supervisor, endpoint: Endpoint, key: str, model: str) -> None:
        # Loading the clients takes a second; the model loads meanwhile.
        from project.management import showcase

        self._wait_until_ready(supervisor, endpoint)
        os.environ["NO_PROXY"] = endpoint.host  # these requests stay on this machine
        # The main thread supervises the processes meanwhile.
        scenes = ThreadPoolExecutor(1).submit(showcase.run, endpoint.url, key, model, self._write)
        if not supervisor.wait_until(scenes.done, SHOW_PATIENCE):
            raise CommandError(f"not done after {SHOW_PATIENCE:.0f} s.\n{_format_log_ends()}")
        try:
            scenes.result()
        except showcase.ShowcaseError as error:
            raise CommandError(f"{error}\n{_format_log_ends()}") from error

    def _wait_until_ready(self, supervisor: Supervisor, endpoint: Endpoint) -> None:
        while not supervisor.wait_until(endpoint.is_ready, PROGRESS, interval=0.1):
            waited = self._measure_elapsed()
            if supervisor.list_failing():
                raise CommandError(f"the service did not start.\n{_format_log_ends()}")
            if waited > START_PATIENCE:
                raise CommandError(f"not ready after {waited:.0f} s.\n{_format_log_ends()}")
            self._write(f"   loading the model: {waited:.0f} s")
        self._write(f"   ready after {self._measure_elapsed():.1f} s: {endpoint.url}")

    def _measure_elapsed(self) -> float:
        return time.monotonic() - self.started

    def _write(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _prepare_models() -> None:
    """Run prepare_model in its own process, whose memory is free before the workers start."""
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "prepare_model"]
    if subprocess.run(command, check=False).returncode != 0:  # noqa: S603
        raise CommandError("the models cannot be prepared; the reason is above")


def _format_log_ends() -> str:
    paths = sorted(settings.LOG_DIR.glob("*.log"))
    return "\n".join(f"--- the end of {path}:\n{logs.read_tail(path)}" for path in paths)
