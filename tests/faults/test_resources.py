"""No room on the disk, no room in Redis, a database that restarts."""

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from redis import Redis

from completions.jobs.connection import connect
from tests.acceptance.kills.test_kills import create_batch, ended, require_every_answer_once
from tests.acceptance.service import MODEL, ScriptedInstallation, ended_job
from tests.faults.invariants import records_of, require_sound, until
from tests.faults.postgres import PrivatePostgres
from tests.faults.test_messages import arguments, message
from tests.faults.traffic import Traffic

ENDLESS = resource.RLIM_INFINITY
MEGABYTE = 1 << 20


@contextmanager
def full_disk(pid: int, size: int) -> Iterator[None]:
    """No file of a process may grow beyond so many bytes: what a full disk does to it."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, ENDLESS))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (ENDLESS, ENDLESS))


@pytest.mark.faults
def test_a_full_disk_is_reported_and_does_no_harm(scripted):
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
def test_a_background_worker_continues_once_the_disk_has_space(scripted):
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


@contextmanager
def memory_limit(redis: Redis) -> Iterator[Callable[[float], None]]:
    """Sets maxmemory so that so much of it is used. There is much in this Redis, so that what a
    test adds makes no difference."""
    redis.setrange("padding", 64 * MEGABYTE, b"x")
    try:
        yield lambda share: redis.config_set(
            "maxmemory", int(redis.info("memory")["used_memory"] / share)
        )
    finally:
        redis.config_set("maxmemory", 0)
        redis.delete("padding")


@pytest.mark.faults
def test_a_full_redis_refuses_new_jobs_and_lets_running_ones_end(scripted):
    """Nothing new is accepted well before maxmemory, so that running jobs keep room to end."""
    client = connect(scripted.redis_url)
    long = {"model": MODEL, "prompt": [7], "max_tokens": 4000, "background": True}
    short = {"model": MODEL, "prompt": [7], "max_tokens": 2}
    with scripted.http() as http:

        def refused():
            answer = http.post("/v1/completions", json=short)
            return answer if answer.status_code == 503 else None

        with memory_limit(client) as limit:
            running = http.post("/v1/completions", json=long).headers["Location"]
            limit(0.95)
            refusal = until(refused, "no more is accepted")
            assert refusal.json()["error"]["code"] == "server_overloaded"
            assert refusal.headers["Retry-After"]
            assert http.get(running).json()["status"] == "in_progress"
            done = ended_job(http, running)
            assert done["status"] == "completed"
            limit(1.1)  # now nothing at all can be written
            unready = until(
                lambda: (a := http.get("/readyz")).status_code == 503 and a, "it is not ready"
            )
            assert "redis" in unready.json()["failures"]
            assert refused()
        until(
            lambda: http.post("/v1/completions", json=short).status_code == 200, "all is well again"
        )
    client.close()


@pytest.mark.faults
def test_workers_survive_a_redis_that_refuses_every_write(scripted):
    """They cannot even note that they have taken a message; the jobs run once there is room."""
    redis = connect(scripted.redis_url)
    workers = [scripted.worker_pid, scripted.pid("cpu-worker")]
    call = {"model": MODEL, "prompt": [7], "max_tokens": 20, "seed": 4, "background": True}
    with scripted.http() as http, memory_limit(redis) as limit, ExitStack() as stopped:
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
            stopped.callback(os.kill, pid, signal.SIGCONT)
        jobs = [http.post("/v1/completions", json=call).headers["Location"] for _ in range(8)]
        redis.lpush("quire:cpu", message(arguments(), task="completions.tasks.reconcile"))
        limit(1.1)
        errors = redis.info("stats")["total_error_replies"]
        stopped.close()

        def met():
            assert scripted.worker_runs()
            return redis.info("stats")["total_error_replies"] > errors + 30

        until(met, "they meet what Redis refuses")
        redis.config_set("maxmemory", 0)
        for job in jobs:
            done = ended_job(http, job)
            assert done["status"] == "completed"
    redis.close()
    assert scripted.worker_runs()
    assert scripted.pid("cpu-worker") == workers[1]


@pytest.mark.faults
def test_a_restart_of_postgresql_loses_nothing(tmp_path):
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
            await traffic.until_more(20)
            await asyncio.to_thread(server.restart)
        await traffic.until_more(20)
        traffic.stop()
        ledger = await running
        done = await asyncio.to_thread(ended, client, batch)
        await asyncio.to_thread(require_every_answer_once, service, client, done, 40)
    return ledger
