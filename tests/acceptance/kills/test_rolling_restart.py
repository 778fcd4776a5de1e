"""Two workers of one model are replaced one after the other, as docs/scale.md says, under load."""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from subprocess import Popen
from typing import Any

import openai
import pytest
import redis

from completions.jobs.connection import connect
from completions.jobs.store import JobStore
from completions.jobs.workers import list_workers_sync
from tests.acceptance.conftest import GRACE, STEP
from tests.acceptance.service import MODEL, START_TIMEOUT, ScriptedInstallation
from tests.faults.traffic import tokens

pytestmark = [pytest.mark.acceptance, pytest.mark.wide]

SHORT, LONG = 125, 1000
"""Tokens of a stream. A long one outlasts the grace by far, however late the signal comes."""
assert LONG * STEP > 15 * GRACE
CLIENTS = 8


class Fleet:
    """The workers of the model; an old one is replaced by a new one."""

    def __init__(self, service: ScriptedInstallation, client: "redis.Redis") -> None:
        self._service = service
        self._client = client
        self.processes: list[Popen[bytes]] = []

    def add(self) -> None:
        self.processes.append(process := self._service.spawn_worker())
        deadline = time.monotonic() + START_TIMEOUT
        while self._name(process) is None:
            assert time.monotonic() < deadline, self._service.logs()
            time.sleep(0.1)

    def replace(self, drained: bool) -> None:
        """Stop the one with the most jobs, the older of two, and start another."""
        leaving = max(self.processes, key=self._running)
        name = self._name(leaving)
        assert name is not None
        if drained:
            printed = self._service.manage("workers", "--drain", name, "--wait")
            assert "has no jobs any more" in printed
        leaving.send_signal(signal.SIGTERM)
        assert leaving.wait(START_TIMEOUT) == 0
        self.processes.remove(leaving)
        self.add()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def _running(self, process: Popen[bytes]) -> int:
        """How many jobs it runs."""
        store = JobStore(self._client, "quire:")
        owners = [
            self._client.hget(store.keys.job(job_id.decode()), "owner") or b""
            for job_id in self._client.zrange("quire:open", 0, -1)
        ]
        return sum(f"-{process.pid}-".encode() in owner for owner in owners)

    def _name(self, process: Popen[bytes]) -> str | None:
        """Once it serves."""
        assert process.poll() is None
        live = list_workers_sync(JobStore(self._client, "quire:"))
        named = [each.id for each in live if f"-{process.pid}-" in each.id]
        return named[0] if named else None


@pytest.fixture
def fleet(scripted) -> Iterator[Fleet]:
    """Two workers, and none besides."""
    with ExitStack() as stack, connect(scripted.redis_url) as client:
        made = Fleet(scripted, client)
        stack.callback(made.stop)
        made.add()
        made.add()
        scripted.stop_worker()
        yield made
        scripted.start_worker()


class Audience:
    """Clients that read one stream after the other, each of which must be whole."""

    def __init__(self, service: ScriptedInstallation, length: int) -> None:
        self._service = service
        self._length = length
        self._stopping = False
        self._next_seed = 0
        self.job_ids: list[str] = []
        self._running = asyncio.Event()

    async def watch(self, act: Any) -> None:
        """While something is done in a thread."""
        async with self._service.async_client(timeout=START_TIMEOUT) as client:
            watching = asyncio.gather(*(self._read_on(client) for _ in range(CLIENTS)))
            await self._running.wait()
            try:
                await asyncio.to_thread(act)
            finally:
                self._stopping = True
                await watching

    async def _read_on(self, client: openai.AsyncOpenAI) -> None:
        while not self._stopping:
            self._next_seed += 1
            await self._read(client, self._next_seed)

    async def _read(self, client: openai.AsyncOpenAI, seed: int) -> None:
        numbers, ids = [], []
        async for chunk in await client.completions.create(
            model=MODEL, prompt=[7], max_tokens=self._length, seed=seed, stream=True,
            extra_body={"return_token_ids": True},
        ):  # fmt: skip
            if not numbers:
                self.job_ids.append(chunk.id)
                if len(self.job_ids) == CLIENTS:
                    self._running.set()
            numbers.append(chunk.sequence_number)
            ids += chunk.choices[0].token_ids
        assert numbers == list(range(1, self._length + 1))
        assert ids == tokens(seed, self._length)


def attempts(service: ScriptedInstallation, job_ids: list[str]) -> set[int]:
    with connect(service.redis_url) as client:
        return {int(client.hget(f"quire:job:{job_id}", "attempt")) for job_id in job_ids}


@pytest.mark.long
def test_replacing_drained_workers_interrupts_no_stream(scripted, fleet):
    audience = Audience(scripted, SHORT)

    def roll():
        fleet.replace(drained=True)
        fleet.replace(drained=True)

    asyncio.run(audience.watch(roll))
    assert len(audience.job_ids) >= 2 * CLIENTS
    assert attempts(scripted, audience.job_ids) == {1}  # who was drained ended what it had


@pytest.mark.long
def test_a_worker_stopped_without_draining_hands_its_streams_over(scripted, fleet):
    audience = Audience(scripted, LONG)
    asyncio.run(audience.watch(lambda: fleet.replace(drained=False)))
    assert max(attempts(scripted, audience.job_ids)) == 2
