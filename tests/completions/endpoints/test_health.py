import asyncio

import pytest
from django.db import OperationalError
from django.test import Client
from redis.exceptions import OutOfMemoryError

from completions.endpoints import health
from completions.http import runtime
from tests.completions.conftest import FakeRuntime

pytestmark = pytest.mark.usefixtures("served", "db")


def test_alive_without_anything(client: Client) -> None:
    response = client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_ready(client: Client, fake_runtime: FakeRuntime) -> None:
    response = client.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"status": "ready"})


def test_not_ready_without_a_worker(client: Client, fake_runtime: FakeRuntime) -> None:
    fake_runtime.live = {"another model"}
    response = client.get("/readyz")
    assert response.status_code == 503
    (told,) = response.json()["failures"].items()
    assert told == (
        "worker", "none that takes jobs serves any of: tiny, texts, org/slashed, absent",
    )  # fmt: skip


def test_not_ready_without_redis(client: Client, fake_runtime: FakeRuntime) -> None:
    fake_runtime.failure = ConnectionRefusedError()
    assert client.get("/readyz").json()["failures"] == {
        "redis": "does not answer (ConnectionRefusedError)",
        "worker": "cannot be known without Redis",
    }


def test_not_ready_while_redis_takes_no_writes(
    client: Client, fake_runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full() -> None:
        raise OutOfMemoryError

    monkeypatch.setattr(runtime, "ping", full)
    failures = client.get("/readyz").json()["failures"]
    assert failures == {"redis": "takes no writes: it is at maxmemory"}


def test_not_ready_without_the_database(
    client: Client, fake_runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise OperationalError

    monkeypatch.setattr(health, "_migrated", away)
    failures = client.get("/readyz").json()["failures"]
    assert failures == {"database": "does not answer (OperationalError)"}


def test_what_hangs_is_told_and_not_waited_for(
    client: Client, fake_runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(runtime, "ping", hang)
    monkeypatch.setattr(health, "PATIENCE", 0.5)
    assert "no answer within" in client.get("/readyz").json()["failures"]["redis"]


def test_not_ready_while_it_shuts_down(client: Client, fake_runtime: FakeRuntime) -> None:
    fake_runtime.is_closing = True
    failures = client.get("/readyz").json()["failures"]
    assert failures == {"process": "this process is shutting down"}


def test_not_ready_before_migrations(
    client: Client, fake_runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_migrations_applied", False)
    monkeypatch.setattr(health.MigrationExecutor, "migration_plan", lambda self, targets: [1, 2])
    failures = client.get("/readyz").json()["failures"]
    assert failures == {"database": "2 migrations are not applied; run `python manage.py migrate`"}
    assert not health._migrations_applied


async def test_a_crowd_is_told_by_one_check_even_if_the_first_hangs_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks, goes_on = 0, asyncio.Event()

    async def check() -> str:
        nonlocal checks
        checks += 1
        await goes_on.wait()
        return "why"

    monkeypatch.setattr(health, "_CHECKS", {"it": check})
    crowd = [asyncio.create_task(health._together()) for _ in range(50)]
    await asyncio.sleep(0.01)
    assert checks == 1
    crowd.pop(0).cancel()
    await asyncio.sleep(0.01)
    assert checks == 2
    goes_on.set()
    assert await asyncio.gather(*crowd) == [["why"]] * 49
    assert checks == 2
    assert await health._together() == ["why"]
    assert checks == 3  # nothing is kept
