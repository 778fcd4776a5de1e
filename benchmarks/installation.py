"""A whole installation for benchmarks: `manage.py up` in a folder that is deleted afterwards."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = ROOT / "var" / "models" / "smollm2-135m-instruct"
READY_WITHIN = 600.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """One process's CPU seconds so far and resident bytes now."""

    cpu: float
    memory: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return cls((int(fields[11]) + int(fields[12])) / _TICKS, resident * _PAGE)


@dataclass(frozen=True, slots=True)
class Installation:
    """One that is ready to serve."""

    port: int
    key: str
    pids: dict[str, int]
    """Its processes by name: web, cpu-worker, valkey, worker, worker-2, ..."""
    environment: dict[str, str]
    """Of its processes."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    @property
    def redis_url(self) -> str:
        return f"unix://{self.environment['QUIRE_HOME']}/run/valkey.sock?db=0"

    def new_key(self, name: str, *options: str) -> str:
        """One more API key, of an organization of its own."""
        return _new_key(self.environment, name, "--organization", name, *options)

    def usage(self) -> dict[str, Usage]:
        """Of each process now."""
        return {name: Usage.of(pid) for name, pid in self.pids.items()}


@contextmanager
def installation(
    models: str,
    worker: Sequence[str] | None = None,
    workers: int = 1,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Installation]:
    """Serve what `models`, the text of a models.toml, names, on embedded servers and a free port.

    `worker` are the arguments to Python that start an engine worker, where it is not `up`'s own;
    there are `workers` of them. `settings` are more environment variables.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="quire-bench-"))
        home, port = Path(folder), free_port()
        (home / "models.toml").write_text(models)
        environment = {
            **{k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")},
            "QUIRE_HOME": str(home),
            "QUIRE_MODELS": str(home / "models.toml"),
            "PORT": str(port),
            "DJANGO_SETTINGS_MODULE": "project.settings",
            **(settings or {}),
        }

        def start(*arguments: str) -> "subprocess.Popen[bytes]":
            quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            return subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, env=environment, **quiet
            )

        only = ["--only", "cpu-worker,web"] if worker is not None else []
        up = start("manage.py", "up", *only)
        stack.callback(_stop, up)
        own = []
        for _ in range(workers if worker is not None else 0):
            own.append(start(*(worker or ())))
            stack.callback(_kill, own[-1])
        _wait_ready(f"http://127.0.0.1:{port}", up)
        names = ["web", "cpu-worker", "valkey", *([] if own else ["worker"])]
        pids = {name: int((home / "run" / f"{name}.pid").read_text()) for name in names}
        for number, process in enumerate(own, start=1):
            pids["worker" if number == 1 else f"worker-{number}"] = process.pid
        yield Installation(port, _new_key(environment, "benchmark"), pids, environment)


def _new_key(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "manage.py", "create_api_key", *arguments]
    return subprocess.check_output(command, cwd=ROOT, env=environment, text=True).strip()


def _stop(up: "subprocess.Popen[bytes]") -> None:
    up.send_signal(signal.SIGTERM)
    up.wait(60)


def _kill(worker: "subprocess.Popen[bytes]") -> None:
    worker.kill()
    worker.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(url: str, up: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline and up.poll() is None:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit("the service did not become ready")
