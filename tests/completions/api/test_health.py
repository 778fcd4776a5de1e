import pytest
from django.test import Client

from completions.api import health
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
    assert response.json()["failures"].keys() == {"worker"}


def test_not_ready_without_redis(client: Client, fake_runtime: FakeRuntime) -> None:
    fake_runtime.failure = ConnectionRefusedError()
    assert client.get("/readyz").json()["failures"] == {
        "redis": "ConnectionRefusedError",
        "worker": "ConnectionRefusedError",
    }


def test_not_ready_before_migrations(
    client: Client, fake_runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_migrations_applied", False)
    monkeypatch.setattr(health.MigrationExecutor, "migration_plan", lambda self, targets: [1, 2])
    failures = client.get("/readyz").json()["failures"]
    assert failures == {"database": "2 migrations are not applied; run `python manage.py migrate`"}
    assert not health._migrations_applied
