"""`manage.py demo`: start the whole service, send it one request of each kind, stop it."""

import contextlib
import io
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from completions.catalog import entries
from project.processes import logs
from project.processes.endpoint import Endpoint, free_port
from project.processes.supervisor import dying_with

START_PATIENCE = 120.0
STOP_PATIENCE = 60.0


class Command(BaseCommand):
    help = "Start the service on a free port, send real requests end to end, stop it."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        signal.signal(signal.SIGTERM, _interrupt)
        logging.disable(logging.INFO)  # what is worth seeing is printed
        self.started = time.monotonic()
        self._write("Starting Valkey, a worker with the model, the CPU worker and the web server")
        endpoint = Endpoint("127.0.0.1", free_port())
        try:
            model = next(iter(entries.load(settings.MODELS_FILE, settings.MODELS_DIR)))
            with self._service(endpoint) as up:
                self._show(up, endpoint, model.id)
        except entries.CatalogError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("interrupted; everything was stopped", returncode=130) from None
        self._write(f"\nAll done and stopped, in {self._elapsed():.1f} s.")
        self._write("Next: `make serve` keeps it running.")

    @contextlib.contextmanager
    def _service(self, endpoint: Endpoint) -> Iterator[subprocess.Popen[bytes]]:
        """A whole `up` on the endpoint, stopped at the end; it stops too if this process dies."""
        settings.LOG_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(settings.LOG_DIR / "up.log", "wb") as output:
            up = subprocess.Popen(  # noqa: S603
                [sys.executable, settings.BASE_DIR / "manage.py", "up", "--no-first-key"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PORT": str(endpoint.port)},
                start_new_session=True,
                preexec_fn=dying_with(os.getpid(), signal.SIGTERM),
            )
        try:
            yield up
        finally:
            up.terminate()
            try:
                up.wait(STOP_PATIENCE)
            except subprocess.TimeoutExpired:
                up.kill()
                up.wait()

    def _show(self, up: subprocess.Popen[bytes], endpoint: Endpoint, model: str) -> None:
        # Loading the clients takes a second, in which the model loads.
        from project.management.showcase import Showcase, ShowcaseError

        self._wait_until_ready(up, endpoint)
        os.environ["NO_PROXY"] = endpoint.host  # these requests stay on this machine
        with self._key() as key:
            try:
                Showcase(endpoint.url, key, model, self._write).run()
            except ShowcaseError as error:
                raise CommandError(f"{error}\n{_ends_of_logs()}") from error

    def _wait_until_ready(self, up: subprocess.Popen[bytes], endpoint: Endpoint) -> None:
        said = 0.0
        while not endpoint.is_ready():
            waited = self._elapsed()
            if up.poll() is not None:
                raise CommandError(f"the service did not start.\n{_ends_of_logs()}")
            if waited > START_PATIENCE:
                raise CommandError(f"not ready after {waited:.0f} s.\n{_ends_of_logs()}")
            if waited > said + 2:
                said = waited
                self._write(f"   loading the model: {waited:.0f} s")
            time.sleep(0.2)
        self._write(f"   ready after {self._elapsed():.1f} s: {endpoint.url}")

    @contextlib.contextmanager
    def _key(self) -> Iterator[str]:
        """A key for this run alone."""
        name = f"make-demo-{secrets.token_hex(4)}"
        printed = io.StringIO()
        call_command("create_api_key", name, "--expires-in-days", "1", stdout=printed)
        try:
            yield printed.getvalue().strip()
        finally:
            call_command("revoke_api_key", name, stdout=io.StringIO(), stderr=io.StringIO())

    def _elapsed(self) -> float:
        return time.monotonic() - self.started

    def _write(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _ends_of_logs() -> str:
    paths: list[Path] = sorted(settings.LOG_DIR.glob("*.log"))
    ends = [f"--- the end of {path}:\n{logs.tail(path)}" for path in paths]
    return "\n".join(ends)
