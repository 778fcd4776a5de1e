"""An installation on a Valkey cluster: a master is killed, and its replica takes over."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from redis.crc import key_slot

from completions.jobs.connection import connect
from completions.jobs.sharding.shards import find_shard
from project.processes.services import _UVICORN
from tests.acceptance.kills.test_kills import create_batch, ended, require_every_answer_once
from tests.acceptance.service import MODEL, ROOT, ScriptedInstallation, free_port
from tests.conftest import PrivateValkey
from tests.faults.invariants import require_background_done, until
from tests.faults.traffic import TOKENS, Traffic, tokens
from tests.valkey_cluster import ValkeyCluster

MASTERS = 3
WEBS = 4
IS_WHOLE = os.environ.get("QUIRE_FAULT_CLUSTER") == "whole"
"""With 3,000 streams at a time and 24 workers, which take several cores."""
CLIENTS, WORKERS, LINES = (1000, 24, 2000) if IS_WHOLE else (8, 2, 60)
AFTER_KILL, AFTER_FAILOVER = (CLIENTS, CLIENTS // 2) if IS_WHOLE else (4 * CLIENTS, 2 * CLIENTS)
"""Answers of each organization that the test waits for."""
REQUESTS, FITTING = 200, 50


class Sharded(ScriptedInstallation):
    """Several web processes and workers, whose shards lie on a cluster."""

    def __init__(self, home: Path, cluster: ValkeyCluster, broker: str) -> None:
        self.cluster = cluster
        super().__init__(
            home, 0.05, REDIS_URLS=",".join(cluster.urls), QUIRE_REDIS_CLUSTER="true",
            QUIRE_SHARDS=str(MASTERS), CELERY_BROKER_URL=broker,
        )  # fmt: skip
        self.urls = [self.url]
        self._more: list[subprocess.Popen[bytes]] = []

    def after_start(self) -> None:
        super().after_start()
        self._more += [self.spawn_worker() for _ in range(WORKERS - 1)]

    def start_web_processes(self) -> None:
        environment = {**self.environment, "DJANGO_SETTINGS_MODULE": "project.settings"}
        with (self.home / "webs.out").open("wb") as output:
            for _ in range(WEBS - 1):
                port = free_port()
                command = [*_UVICORN.split(), "--host", "127.0.0.1", "--port", str(port)]
                web = subprocess.Popen(
                    [sys.executable, *command], cwd=ROOT, env=environment, stderr=output
                )
                self._more.append(web)
                self.urls.append(f"http://127.0.0.1:{port}")
        until(lambda: all(map(is_ready, self.urls)), "all web processes are ready")

    def make_keys(self) -> list[str]:
        """Make a key of an organization of each shard."""
        made: dict[int, str] = {}
        while len(made) < MASTERS:
            name = f"organization-{len(made)}-{free_port()}"
            key = self.manage("create_api_key", "tests", "--organization", name).strip()
            with self.http(key) as http:
                job_id = http.post("/v1/completions", json=BODY).raise_for_status().json()["id"]
            made.setdefault(find_shard(job_id, MASTERS), key)
        return [made[number] for number in range(MASTERS)]

    def __exit__(self, *exc: object) -> None:
        for process in self._more:
            process.terminate()
        for process in self._more:
            process.wait()
        super().__exit__(*exc)


BODY = {"model": MODEL, "prompt": [7], "max_tokens": TOKENS, "seed": 5, "return_token_ids": True}


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Sharded]:
    with ExitStack() as stack:
        (tmp_path / "nodes").mkdir()
        (tmp_path / "broker").mkdir()
        (tmp_path / "home").mkdir()
        cluster = ValkeyCluster(tmp_path / "nodes", MASTERS, free_port)
        stack.callback(cluster.stop)
        broker = PrivateValkey(tmp_path / "broker")
        broker.start()
        stack.callback(broker.stop)
        port = free_port()
        with connect(broker.url) as client:
            client.config_set("port", port)
        url = f"redis://127.0.0.1:{port}/0"
        service = stack.enter_context(Sharded(tmp_path / "home", cluster, url))
        service.start_web_processes()
        yield service


@pytest.mark.long
def test_a_master_is_killed_and_its_replica_takes_over(service: Sharded) -> None:
    """Only its organizations get errors, and nothing that was accepted is lost. Then limits are
    counted on."""
    keys = service.make_keys()
    victim = MASTERS - 1
    master = service.cluster.find_master(key_slot(f"{{{victim}}}".encode()))
    unharmed = [
        key
        for number, key in enumerate(keys)
        if service.cluster.find_master(key_slot(f"{{{number}}}".encode())) != master
    ]
    assert unharmed
    batches = {}
    for key in (unharmed[0], keys[victim]):
        batches[key] = create_batch(service.client(key), LINES)
    traffics = [
        Traffic(service, CLIENTS, number, key, service.urls[number % WEBS])
        for number, key in enumerate(keys)
    ]
    asyncio.run(kill_amid(service, traffics, master))
    for key, traffic in zip(keys, traffics, strict=True):
        print(dict(traffic.ledger.outcomes))
        assert not traffic.ledger.violations, traffic.ledger.violations[:5]
        refused = [kind for kind in traffic.ledger.outcomes if ": " in kind or "Error" in kind]
        assert not (refused and key in unharmed), traffic.ledger.outcomes
        assert traffic.ledger.outcomes["whole streams"]
        require_background_done(service, traffic.ledger.accepted, key)
    for key, batch in batches.items():
        client = service.client(key)
        require_every_answer_once(service, client, ended(client, batch), LINES)
    require_exact_budget(service)


async def kill_amid(service: Sharded, traffics: list[Traffic], master: int) -> None:
    running = [asyncio.create_task(traffic.run()) for traffic in traffics]
    for traffic in traffics:
        await traffic.until_more(CLIENTS)
    await asyncio.to_thread(service.cluster.kill, master)
    for traffic in traffics:
        await traffic.until_more(AFTER_KILL)
    await asyncio.to_thread(until, lambda: is_served(service), "the replica is master")
    for traffic in traffics:
        await traffic.until_more(AFTER_FAILOVER)
        traffic.stop()
    await asyncio.gather(*running)


def is_served(service: Sharded) -> bool:
    """Return whether each shard has a master that answers."""
    return all(
        service.cluster.find_master(key_slot(f"{{{number}}}".encode())) in service.cluster.alive
        for number in range(MASTERS)
    )


def require_exact_budget(service: Sharded) -> None:
    """Of simultaneous requests through all web processes, as many fit as the budget has room
    for."""
    of_one = TOKENS + 1
    budget = str(FITTING * of_one + of_one // 2)
    key = service.manage("create_api_key", "limited", "--daily-token-budget", budget).strip()

    def send(number: int) -> int:
        url = service.urls[number % WEBS]
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.post(f"{url}/v1/completions", json=BODY, headers=headers, timeout=300)
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["token_ids"] == tokens(5)
        return answer.status_code

    with ThreadPoolExecutor(REQUESTS) as pool:
        statuses = Counter(pool.map(send, range(REQUESTS)))
    assert statuses == {200: FITTING, 429: REQUESTS - FITTING}
