"""No room on the disk, no room in Redis, a database that restarts."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis import Redis

from completions.jobs.connection import connect
from tests.acceptance.service import MODEL, ScriptedInstallation
from tests.acceptance.test_kills import create_batch, ended, require_every_answer_once
from tests.faults.invariants import records_of, require_sound, until
from tests.faults.postgres import PrivatePostgres
from tests.faults.traffic import Traffic

ENDLESS = resource.RLIM_INFINITY


@contextmanager
def full_disk(pid: int, size: int) -> Iterator[None]:
    """No file of a process may grow beyond so many bytes: what a full disk does to it."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, ENDLESS))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (ENDLESS, ENDLESS))


@pytest.mark.faults
def test_a_full_disk_is_said_and_survived(scripted):
    with scripted.http() as http:
        upload = {"file": ("a.jsonl", b"x" * (8 << 20)), "purpose": (None, "batch")}
        with full_disk(scripted.pid("web"), 4 << 20):
            refused = http.post("/v1/files", files=upload)
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"]["code"] == "storage_full"
            assert refused.headers["Retry-After"]
            body = {"model": MODEL, "prompt": [7], "max_tokens": 2}
            assert http.post("/v1/completions", json=body).status_code == 200
        until(lambda: not list((scripted.home / "tmp").iterdir()), "no half upload stays")
        assert http.post("/v1/files", files=upload).status_code == 200


def turns_of_settlement(redis: Redis) -> int:
    """Each asks how many ended jobs there are, by a command that nobody else uses here."""
    calls: int = redis.info("commandstats")["cmdstat_xlen"]["calls"]
    return calls


@pytest.mark.faults
def test_a_cpu_worker_without_disk_goes_on_once_it_has_some(scripted):
    """Neither SQLite nor files can be written for a while; a call's usage and a batch wait."""
    redis = connect(scripted.redis_url)
    with scripted.client() as client:
        with full_disk(scripted.pid("cpu-worker"), 0):
            batch = create_batch(client, 20)
            with scripted.http() as http:
                body = {"model": MODEL, "prompt": [7], "max_tokens": 2}
                answered = http.post("/v1/completions", json=body)
                assert answered.status_code == 200
            tried = turns_of_settlement(redis) + 3
            until(lambda: turns_of_settlement(redis) > tried, "it tries, in vain")
            assert client.batches.retrieve(batch.id).status in ("validating", "in_progress")
        require_every_answer_once(scripted, client, ended(client, batch), 20)
    redis.close()
    called = answered.json()["id"]
    until(lambda: records_of(scripted, [called]) == {called: 1}, "the call is counted")


@pytest.mark.faults
def test_a_redis_at_its_limit_refuses_and_what_runs_ends(scripted):
    """Nothing new is accepted well before maxmemory, so that running jobs keep room to end."""
    client = connect(scripted.redis_url)
    long = {"model": MODEL, "prompt": [7], "max_tokens": 600, "background": True}
    short = {"model": MODEL, "prompt": [7], "max_tokens": 2}
    with scripted.http() as http:
        running = http.post("/v1/completions", json=long).headers["Location"]
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", int(used * 1.08))
        try:
            refused = until(
                lambda: (a := http.post("/v1/completions", json=short)).status_code == 503 and a,
                "no more is accepted",
            )
            assert refused.json()["error"]["code"] == "server_overloaded"
            assert refused.headers["Retry-After"]
            done = until(
                lambda: (
                    (b := http.get(running, params={"wait": 5}).json())["status"]
                    not in ("queued", "in_progress")
                    and b
                ),
                "what runs ends",
            )
            assert done["status"] == "completed"
            client.config_set("maxmemory", 1)  # now nothing at all can be written
            unready = until(
                lambda: (a := http.get("/readyz")).status_code == 503 and a, "it is not ready"
            )
            assert "redis" in unready.json()["failures"]
            assert http.post("/v1/completions", json=short).status_code == 503
        finally:
            client.config_set("maxmemory", 0)
        client.close()
        until(
            lambda: http.post("/v1/completions", json=short).status_code == 200, "all is well again"
        )


@pytest.mark.faults
def test_a_postgresql_that_restarts_loses_nothing(tmp_path):
    with (
        PrivatePostgres.running() as server,
        ScriptedInstallation(tmp_path, 0.01, DATABASE_URL=server.url) as service,
    ):
        ledger = asyncio.run(_under_load(service, server))
        require_sound(service, ledger)


async def _under_load(service: ScriptedInstallation, server: PrivatePostgres):
    traffic = Traffic(service, 8, 1)
    running = asyncio.create_task(traffic.run())
    with service.client() as client:
        batch = await asyncio.to_thread(create_batch, client, 40)
        for _ in range(3):
            await asyncio.sleep(2.0)
            await asyncio.to_thread(server.restart)
        await asyncio.sleep(1.0)
        traffic.stop()
        ledger = await running
        done = await asyncio.to_thread(ended, client, batch)
        await asyncio.to_thread(require_every_answer_once, service, client, done, 40)
    return ledger
