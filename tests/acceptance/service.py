"""A whole installation for tests: `manage.py up` in a home and on a port of its own."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import httpx
import openai

from tests import compiled, migrated

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = "smollm2-135m-instruct"
MODEL_FOLDER = ROOT / "var" / "models" / MODEL
START_TIMEOUT = 300.0
_CONSOLE = """
import contextlib, io, json, sys, traceback
import django
django.setup()
from django.core.management import call_command
from django.db import connections
for line in sys.stdin:
    output, failure = io.StringIO(), None
    with contextlib.redirect_stdout(output):
        try:
            call_command(*json.loads(line))
        except BaseException:
            failure = traceback.format_exc()
    connections.close_all()
    print(json.dumps([output.getvalue(), failure]), flush=True)
"""
"""Runs management commands: one in each line of its input, as JSON."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], object], timeout: float = START_TIMEOUT) -> None:
    """Ask again and again, until the condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def ended_job(http: httpx.Client, location: str, timeout: float = START_TIMEOUT) -> dict[str, Any]:
    """A job, once it has ended."""
    deadline = time.monotonic() + timeout
    while True:
        body: dict[str, Any] = http.get(location, params={"wait": 10}).raise_for_status().json()
        if body["status"] not in ("queued", "in_progress"):
            return body
        assert time.monotonic() < deadline, body


class Installation:
    """One running `up`, with all of its data in `home`. No process outlives the context."""

    up_options: Sequence[str] = ()
    root = ROOT
    """The source of the version that runs."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        compiled.share(home)
        models = home / "models.toml"
        models.write_text(self.demo_model() + self.more_models())
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")
        }
        self.environment = {
            **inherited,
            "QUIRE_HOME": str(home),
            "QUIRE_MODELS": str(models),
            "PORT": str(self.port),
            **environment,
        }
        self._up: subprocess.Popen[bytes] | None = None
        self._console_lock = threading.Lock()

    def __enter__(self) -> Self:
        if self.root == ROOT and "DATABASE_URL" not in self.environment:
            migrated.copy_to(self.home)
        with (self.home / "up.out").open("wb") as output:
            self._up = subprocess.Popen(
                [sys.executable, "manage.py", "up", *self.up_options],
                cwd=self.root, env=self.environment, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            self.after_start()
            self.wait_ready()
            self.key = self.manage("create_api_key", "tests").strip()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        if "_console" in self.__dict__:
            self._console.communicate()  # it ends with its input
        if self._up is not None:
            self._up.send_signal(signal.SIGTERM)
            self._up.wait(START_TIMEOUT)

    def demo_model(self) -> str:
        """The table of the demo model in models.toml."""
        return (
            f'[models.{MODEL}]\npath = "{MODEL_FOLDER}"\nmax_num_seqs = 64\nmax_model_len = 4096\n'
            'tool_format = "hermes"\n'
        )

    def more_models(self) -> str:
        """Further tables of models.toml."""
        return ""

    def after_start(self) -> None:
        """Start what `up` does not start here."""

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            assert self._up is not None
            if self._up.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"the service did not become ready:\n{self.logs()}")

    def wait_served(self, model: str, timeout: float = START_TIMEOUT) -> None:
        """Wait until a worker serves one of several models."""
        deadline = time.monotonic() + timeout
        with self.http() as client:
            while client.get(f"/v1/models/{model}").json()["status"] != "loaded":
                assert time.monotonic() < deadline, self.logs()
                time.sleep(0.1)

    def manage(self, *command: str, timeout: float = START_TIMEOUT) -> str:
        """Run a management command, in one process for all commands. Returns its output."""
        with self._console_lock:
            console = self._console
            assert console.stdin is not None
            assert console.stdout is not None
            console.stdin.write(json.dumps(command).encode() + b"\n")
            console.stdin.flush()
            assert select.select([console.stdout], [], [], timeout)[0], f"{command} hangs"
            output, failure = json.loads(console.stdout.readline())
        assert failure is None, failure
        return str(output)

    @cached_property
    def _console(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", _CONSOLE], cwd=self.root,
            env={**self.environment, "DJANGO_SETTINGS_MODULE": "project.settings"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def pid(self, name: str, besides: int | None = None) -> int:
        """Return the pid of a process. Waits while it is ``besides``."""
        path, deadline = self.home / "run" / f"{name}.pid", time.monotonic() + START_TIMEOUT
        while True:
            with contextlib.suppress(FileNotFoundError):  # as it is while a restart is due
                if (pid := int(path.read_text())) != besides:
                    return pid
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """Kill one of its processes by SIGKILL; `up` starts another."""
        pid = self.pid(name)
        while True:
            try:
                return os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it was killed before, and `up` has not noticed yet
                pid = self.pid(name, besides=pid)

    @cached_property
    def redis_url(self) -> str:
        script = "from django.conf import settings; print(settings.REDIS_URL)"
        return self.manage("shell", "-v0", "-c", script).strip()

    def logs(self) -> str:
        texts = [self.home / "up.out", *sorted((self.home / "log").glob("*.log"))]
        return "\n".join(f"== {p.name}\n{p.read_text()[-3000:]}" for p in texts if p.exists())

    def client(self, key: str | None = None, **options: object) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=key or self.key, max_retries=0, **options
        )

    def async_client(self, **options: object) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, **options
        )

    def http(self, key: str | None = None) -> httpx.Client:
        return httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key or self.key}"},
            timeout=START_TIMEOUT,
        )


class ScriptedInstallation(Installation):
    """An installation with a scripted engine worker, which the test starts and stops."""

    up_options = ("--only", "cpu-worker,web")
    worker_root = ROOT
    """The source of the version that the worker runs."""
    worker_module = "benchmarks.service.scripted_worker"

    def __init__(self, home: Path, step: float, **environment: str) -> None:
        super().__init__(home, **environment)
        self._step = step
        self._worker: subprocess.Popen[bytes] | None = None

    def after_start(self) -> None:
        self.start_worker()

    def start_worker(self) -> None:
        self._worker = self.spawn_worker()

    def spawn_worker(self) -> subprocess.Popen[bytes]:
        """Start one more worker, which the caller has to end."""
        with (self.home / "worker.out").open("ab") as output:
            command = ["-m", self.worker_module, "--model", MODEL]
            return subprocess.Popen(
                [sys.executable, *command, "--step", str(self._step)],
                cwd=self.worker_root, stdout=output, stderr=output,
                env={**self.environment, "DJANGO_SETTINGS_MODULE": "project.settings"},
            )  # fmt: skip

    def stop_worker(self) -> None:
        """Kill the worker by SIGKILL."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            self._worker = None

    def kill_worker(self) -> None:
        """Kill the worker by SIGKILL, and start another."""
        self.stop_worker()
        self.start_worker()

    @property
    def worker_pid(self) -> int:
        assert self._worker is not None
        return self._worker.pid

    def worker_runs(self) -> bool:
        return self._worker is not None and self._worker.poll() is None

    def worker_exit(self) -> int | None:
        """The exit code of the worker, once it has ended."""
        return self._worker.poll() if self._worker else None

    def restart_worker(self, number: signal.Signals) -> None:
        """Send the worker a signal, and start another at once, even if the first one still runs."""
        if number == signal.SIGKILL:
            return self.kill_worker()
        assert self._worker is not None
        leaving = self._worker
        leaving.send_signal(number)
        self.start_worker()
        leaving.wait(START_TIMEOUT)
        return None

    def __exit__(self, *exc: object) -> None:
        self.stop_worker()
        super().__exit__(*exc)
