"""A whole installation for benchmarks: `manage.py up` in a folder that is deleted afterwards."""

import json
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

import httpx

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = ROOT / "var" / "models" / "smollm2-135m-instruct"
MODEL = "benchmarked"
"""The id of the model that an installation serves."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """A process's CPU seconds so far and its resident bytes now."""

    cpu: float
    memory: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return cls((int(fields[11]) + int(fields[12])) / _TICKS, resident * _PAGE)


@dataclass(frozen=True, slots=True)
class Installation:
    """An installation that is ready to serve."""

    port: int
    key: str
    pids: dict[str, int]
    """Its processes by name: web, cpu-worker, valkey, worker, worker-2, ..."""
    environment: dict[str, str]
    """The environment variables of its processes."""

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
        """Create another API key, in an organization of its own."""
        return _new_key(self.environment, name, "--organization", name, *options)

    def usage(self) -> dict[str, Usage]:
        """Return the use of each process now, by name."""
        return {name: Usage.of(pid) for name, pid in self.pids.items()}


@contextmanager
def installation(
    entry: Mapping[str, int | str],
    step: float | None = None,
    workers: int = 1,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Installation]:
    """Serve the demo model as MODEL on embedded servers and a free port.

    `entry` has more settings for its table in models.toml, and may name another path. With `step`,
    scripted `workers`, as many as given, replace the engine; `step` is the seconds of one step.
    `settings` are more environment variables.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="quire-bench-"))
        home, port = Path(folder), free_port()
        fields = {"path": str(DEMO_MODEL), **entry}
        lines = [f"[models.{MODEL}]", *(f"{k} = {json.dumps(v)}" for k, v in fields.items())]
        (home / "models.toml").write_text("\n".join(lines))
        models = {"QUIRE_MODELS": str(home / "models.toml")}
        environment = make_environment(home, port) | models | dict(settings or {})
        only = ["--only", "cpu-worker,web"] if step is not None else []
        up = stack.enter_context(running(["manage.py", "up", *only], environment))
        scripted = [
            "-m",
            "benchmarks.service.scripted_worker",
            "--model",
            MODEL,
            "--step",
            str(step),
        ]
        own = [
            stack.enter_context(running(scripted, environment, signal.SIGKILL))
            for _ in range(workers if step is not None else 0)
        ]
        wait_until_ready(f"http://127.0.0.1:{port}/readyz", up)
        names = ["web", "cpu-worker", "valkey", *([] if own else ["worker"])]
        pids = {name: int((home / "run" / f"{name}.pid").read_text()) for name in names}
        for number, process in enumerate(own, start=1):
            pids["worker" if number == 1 else f"worker-{number}"] = process.pid
        yield Installation(port, _new_key(environment, "benchmark"), pids, environment)


def _new_key(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "manage.py", "create_api_key", *arguments]
    return subprocess.check_output(command, cwd=ROOT, env=environment, text=True).strip()


def make_environment(home: Path, port: int) -> dict[str, str]:
    """Return the environment of an installation in a folder, on embedded servers."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
    own = {"QUIRE_HOME": str(home), "PORT": str(port), "DJANGO_SETTINGS_MODULE": "project.settings"}
    return inherited | own


@contextmanager
def running(
    arguments: Sequence[str], environment: Mapping[str, str], end: int = signal.SIGTERM
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run Python with these arguments until the block ends, then send it the signal `end`."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.send_signal(end)
        process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a process answers a URL with 200. Raises SystemExit if it does not."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{url} did not become ready")
