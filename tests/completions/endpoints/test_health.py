import asyncio
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from redis.exceptions import OutOfMemoryError

from completions.endpoints import health
from completions.jobs.operate import QueueLoad
from tests.completions.conftest import FakeProcess

pytestmark = pytest.mark.usefixtures("served", "db")


def test_alive_without_redis_and_workers(client: Client) -> None:
    response = client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_ready_with_a_worker(client: Client, fake_process: FakeProcess) -> None:
    response = client.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"status": "ready"})


def test_not_ready_without_a_worker(client: Client, fake_process: FakeProcess) -> None:
    fake_process.live = {"another model": None}
    response = client.get("/readyz")
    assert response.status_code == 503
    assert response.json()["failures"] == {
        "worker": "no worker that takes new jobs serves any of: tiny, texts, org/slashed, absent"
    }


def test_not_ready_without_redis(client: Client, fake_process: FakeProcess) -> None:
    fake_process.failure = ConnectionRefusedError()
    assert client.get("/readyz").json()["failures"] == {
        "redis": "does not answer (ConnectionRefusedError)",
        "worker": "unknown, because Redis does not answer",
        "queue": "unknown, because Redis does not answer",
    }


def test_not_ready_while_redis_refuses_writes(
    client: Client, fake_process: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full() -> None:
        raise OutOfMemoryError

    monkeypatch.setattr(fake_process, "ping", full)
    failures = client.get("/readyz").json()["failures"]
    assert failures == {"redis": "refuses writes: it has reached maxmemory"}


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        ((10_000, 0, 0, 0), "full: it holds 10000 jobs, and is full from 10000 on"),
        ((0, 4000, 0, 0), "full: it holds 4000 calls and streams, and is full from 4000 on"),
        ((0, 0, 450, 0), "full: it holds 450 bytes of requests, and is full from 450 on"),
        ((0, 0, 0, 337), "full: it holds 337 bytes of calls and streams, and is full from 337 on"),
    ],
)
def test_not_ready_while_the_queue_is_full(
    client: Client, fake_process: FakeProcess, load: tuple[int, int, int, int], reason: str
) -> None:
    fake_process.load = QueueLoad(*load, {"used_memory": 1, "maxmemory": 1000})
    response = client.get("/readyz")
    assert (response.status_code, response.json()["failures"]) == (503, {"queue": reason})


def test_not_ready_while_redis_is_nearly_full(client: Client, fake_process: FakeProcess) -> None:
    fake_process.load = QueueLoad(0, 0, 0, 0, {"used_memory": 900, "maxmemory": 1000})
    failures = client.get("/readyz").json()["failures"]
    assert failures == {"queue": "full: Redis uses 900 of 1000 bytes of memory"}


def test_not_ready_without_the_database(
    client: Client, fake_process: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_process: object) -> None:
        raise OperationalError

    monkeypatch.setattr(health, "_check_migrated", away)
    failures = client.get("/readyz").json()["failures"]
    assert failures == {"database": "does not answer (OperationalError)"}


def test_a_check_that_hangs_is_reported_after_a_limit(
    client: Client, fake_process: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(fake_process, "ping", hang)
    monkeypatch.setattr(health, "CHECK_SECONDS", 0.5)
    assert "no answer within" in client.get("/readyz").json()["failures"]["redis"]


def test_not_ready_while_it_shuts_down(client: Client, fake_process: FakeProcess) -> None:
    fake_process.is_closing = True
    failures = client.get("/readyz").json()["failures"]
    assert failures == {"process": "this process is shutting down"}


def test_not_ready_before_migrations(
    client: Client, fake_process: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health.MigrationExecutor, "migration_plan", lambda self, targets: [1, 2])
    failures = client.get("/readyz").json()["failures"]
    assert failures == {"database": "2 migrations are not applied; run `python manage.py migrate`"}
    assert client.get("/readyz").json()["failures"] == failures


async def test_concurrent_probes_share_one_run_that_outlives_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, goes_on = 0, asyncio.Event()

    async def check(_process: object) -> str:
        nonlocal runs
        runs += 1
        await goes_on.wait()
        return "why"

    monkeypatch.setattr(health, "_CHECKS", {"it": check})
    process: Any = FakeProcess()
    probes = [asyncio.create_task(health.find_failures(process)) for _ in range(50)]
    await asyncio.sleep(0.01)
    probes.pop(0).cancel()
    await asyncio.sleep(0.01)
    goes_on.set()
    assert await asyncio.gather(*probes) == [{"it": "why"}] * 49
    assert runs == 1
    assert await health.find_failures(process) == {"it": "why"}
    assert runs == 2  # a result is not kept
