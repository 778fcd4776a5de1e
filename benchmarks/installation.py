"""A whole installation for benchmarks: `manage.py up` in a folder that is deleted afterwards."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = ROOT / "var" / "models" / "smollm2-135m-instruct"
READY_WITHIN = 120.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process: CPU seconds so far, resident bytes now."""

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
    """Its processes by name: web, worker, cpu-worker, valkey."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def usage(self) -> dict[str, Usage]:
        """Of each process now."""
        return {name: Usage.of(pid) for name, pid in self.pids.items()}


@contextmanager
def installation(models: str, worker: Sequence[str] | None = None) -> Iterator[Installation]:
    """Serve what `models`, the text of a models.toml, names, on embedded servers and a free port.

    `worker` are the arguments to Python that start the engine worker, where it is not `up`'s own.
    """
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        home, port = Path(folder), free_port()
        (home / "models.toml").write_text(models)
        environment = {
            **{k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")},
            "QUIRE_HOME": str(home),
            "QUIRE_MODELS": str(home / "models.toml"),
            "PORT": str(port),
            "DJANGO_SETTINGS_MODULE": "project.settings",
        }

        def start(*arguments: str) -> "subprocess.Popen[bytes]":
            quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            return subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, env=environment, **quiet
            )

        only = ["--only", "cpu-worker,web"] if worker is not None else []
        up = start("manage.py", "up", *only)
        own = start(*worker) if worker is not None else None
        try:
            _wait_ready(f"http://127.0.0.1:{port}", up)
            key = subprocess.check_output(
                [sys.executable, "manage.py", "create_api_key", "benchmark"],
                cwd=ROOT, env=environment, text=True,
            ).strip()  # fmt: skip
            names = ["web", "cpu-worker", "valkey", *(["worker"] if own is None else [])]
            pids = {name: int((home / "run" / f"{name}.pid").read_text()) for name in names}
            yield Installation(port, key, pids | ({"worker": own.pid} if own is not None else {}))
        finally:
            if own is not None:
                own.kill()
                own.wait()
            up.send_signal(signal.SIGTERM)
            up.wait(60)


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
