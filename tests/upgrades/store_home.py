"""Stores the home of a version for the tests of later ones.

    python -m tests.upgrades.store_home 0.1.0

Runs that version from the history (`COMMITS` in earlier.py) with a scripted engine, kills all of
it in the middle of its work (`workload.py`), and packs what it leaves to homes/VERSION.tar.xz. It
needs a PostgreSQL (TEST_DATABASE_URL), pg_dump, and the requirements of that version.
"""

import argparse
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx
import redis

from completions.jobs.connection import connect
from tests.acceptance.service import MODEL, START_TIMEOUT, ScriptedInstallation, ended_job
from tests.postgresql import new_database
from tests.running import until_gone
from tests.upgrades import workload
from tests.upgrades.earlier import COMMITS, HOMES, SCRIPTED_WORKERS, check_out, keep_state, pack

_FAST, _SLOW = 0.1, 0.4
"""Seconds of a step. The feeder of batches comes once per second, so that lines run when the worker
is killed."""
_ORGANIZATION = "acme"
_LIMIT = (
    "from completions.models import Organization;"
    f"Organization.objects.filter(name='{_ORGANIZATION}')"
    ".update(daily_token_budget=10**9, monthly_cost_budget=1000, max_enqueued_tokens=10**7)"
)
_SITE = "import socket\nsocket.gethostname = lambda: 'host'\n"
"""The ids of workers begin with the name of the machine."""


class Earlier(ScriptedInstallation):
    """An installation of an earlier version."""

    def __init__(self, home: Path, root: Path, version: str) -> None:
        (root / "sitecustomize.py").write_text(_SITE)
        super().__init__(
            home, _FAST,
            PYTHONPATH=str(root), LOGNAME="operator", QUIRE_BACKGROUND_TIMEOUT="86400",
            QUIRE_BACKGROUND_RESULT_TTL="86400", QUIRE_REDIS_PREFIX="quire:",
        )  # fmt: skip
        self.root = self.worker_root = root
        self.worker_module = SCRIPTED_WORKERS.get(version, self.worker_module)

    def more_models(self) -> str:
        return workload.PRICES.replace("PRICED", MODEL)

    def __enter__(self) -> Self:
        super().__enter__()
        self.redis: redis.Redis = connect(self.redis_url)
        return self

    def start_worker_of(self, step: float) -> None:
        self._step = step
        self.start_worker()

    def kill_all(self) -> None:
        """Kill every process; the server of Redis has written all that it was told."""
        pids = [int(path.read_text()) for path in (self.home / "run").glob("*.pid")]
        self.stop_worker()
        assert self._up is not None
        self._up.kill()
        self._up.wait()
        self._up = None
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until_gone(pids)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version", choices=COMMITS)
    version = parser.parse_args().version
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = check_out(version, folder / "source")
        home = folder / "home"
        home.mkdir(mode=0o700)
        with Earlier(home, root, version) as service:
            facts = _work(service)
            service.kill_all()
        facts |= {"version": version, "stored_at": time.time()}
        with sqlite3.connect(home / "quire.sqlite3") as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sql = _as_postgresql(service)
        keep_state(home, folder / "state")
        HOMES.mkdir(exist_ok=True)
        pack(folder / "state", sql, facts, HOMES / f"{version}.tar.xz")


def _work(service: Earlier) -> dict[str, Any]:
    """Leave work in every state. Returns what the tests need to know."""
    limits = ("--rpm", "100000", "--tpm", "100000000", "--max-concurrency", "500",
              "--daily-token-budget", "1000000000", "--monthly-cost-budget", "1000")  # fmt: skip
    create = "create_api_key", "--organization", _ORGANIZATION
    keys = {"limited": service.manage(*create, "limited", *limits).strip()}
    keys["revoked"] = service.manage(*create, "revoked").strip()
    service.manage("revoke_api_key", "revoked")
    service.manage("shell", "-v0", "-c", _LIMIT)
    http = service.http(keys["limited"])
    facts: dict[str, Any] = {"keys": keys | {"tests": service.key}}
    facts["ended"] = [
        ended_job(http, f"/v1/completions/{job_id}")
        for job_id in [_post_job(http, workload.ended_body(n)) for n in range(workload.ENDED)]
    ]
    lines = [
        {"custom_id": f"line-{n}", "method": "POST", "url": "/v1/completions",
         "body": workload.line_body(n)}
        for n in range(workload.LINES)
    ]  # fmt: skip
    content = "".join(json.dumps(line) + "\n" for line in lines)
    upload = {"file": ("lines.jsonl", content)}
    file = http.post("/v1/files", files=upload, data={"purpose": "batch"}).raise_for_status()
    batch = {"input_file_id": file.json()["id"], "endpoint": "/v1/completions",
             "completion_window": "24h"}  # fmt: skip
    facts["batch"] = http.post("/v1/batches", json=batch).raise_for_status().json()["id"]
    path = f"/v1/batches/{facts['batch']}"
    _wait(lambda: http.get(path).json()["request_counts"]["completed"] >= workload.LINES // 4)
    # From here on, the results of lines and jobs are in Redis alone.
    _wait(lambda: _stop_between_transactions(service))
    facts["short"] = [_post_job(http, workload.short_body(n)) for n in range(workload.SHORT)]
    _wait(lambda: _count_ended(service, facts["short"]) == workload.SHORT)
    service.stop_worker()
    facts["jobs"] = [_post_job(http, workload.job_body(n)) for n in range(workload.JOBS)]
    service.start_worker_of(_SLOW)
    _wait(lambda: _count_begun(service, facts["jobs"]) >= workload.JOBS // 2)
    counts = http.get(path).json()["request_counts"]
    assert counts["completed"] < workload.LINES, counts
    assert _count_ended(service, facts["jobs"]) == 0
    return facts


def _stop_between_transactions(service: Earlier) -> bool:
    """Stop the background worker, unless it writes to SQLite: nobody else could."""
    pid = service.pid("cpu-worker")
    os.kill(pid, signal.SIGSTOP)
    try:
        with sqlite3.connect(service.home / "quire.sqlite3", timeout=0) as database:
            database.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        os.kill(pid, signal.SIGCONT)
        return False
    return True


def _post_job(http: httpx.Client, body: dict[str, Any]) -> str:
    reply = http.post("/v1/completions", json=body).raise_for_status()
    job_id: str = reply.json()["id"]
    return job_id


def _count_ended(service: Earlier, job_ids: list[str]) -> int:
    states = [service.redis.hget(f"quire:job:{job_id}", "state") for job_id in job_ids]
    return states.count(b"completed")


def _count_begun(service: Earlier, job_ids: list[str]) -> int:
    """How many have published three tokens."""
    counts = [service.redis.hget(f"quire:job:{job_id}", "generated") for job_id in job_ids]
    return sum(int(count or 0) >= 3 for count in counts)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def _as_postgresql(service: Earlier) -> str:
    """The database of the home, moved to PostgreSQL by its own version, as statements."""
    with new_database() as url, tempfile.NamedTemporaryFile(suffix=".json") as data:
        manage = [sys.executable, "manage.py"]
        options: dict[str, Any] = {"cwd": service.root, "check": True}
        of_postgresql = {**service.environment, "DATABASE_URL": url}
        dump = [*manage, "dumpdata", "completions", "-o", data.name]
        subprocess.run(dump, env=service.environment, **options)
        subprocess.run([*manage, "migrate", "-v0"], env=of_postgresql, **options)
        subprocess.run([*manage, "loaddata", data.name], env=of_postgresql, **options)
        arguments = ["--no-owner", "--no-privileges", "--inserts", "--rows-per-insert=100", url]
        text = subprocess.run(
            ["pg_dump", *arguments], capture_output=True, text=True, check=True
        ).stdout
    # psql's own commands, which newer versions of pg_dump write, are no SQL.
    return "".join(line for line in text.splitlines(True) if not line.startswith("\\"))


if __name__ == "__main__":
    main()
