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
from completions.jobs.workers import watch_workers
from tests.acceptance.conftest import GRACE, STEP
from tests.acceptance.service import MODEL, ScriptedInstallation
from tests.faults.traffic import tokens

pytestmark = pytest.mark.acceptance

LENGTH = 125
assert LENGTH * STEP > 2 * GRACE, "a stream must outlast the grace"
CLIENTS = 8


class Fleet:
    """The workers of the model; an old one is replaced by a new one."""

    def __init__(self, service: ScriptedInstallation, client: "redis.Redis") -> None:
        self._service = service
        self._client = client
        self.processes: list[Popen[bytes]] = []

    def add(self) -> None:
        self.processes.append(process := self._service.spawn_worker())
        deadline = time.monotonic() + 60
        while self._name(process) is None:
            assert time.monotonic() < deadline, self._service.logs()
            time.sleep(0.1)

    def replace(self, drained: bool) -> None:
        """Stop the oldest, which has jobs, and start another."""
        leaving = self.processes[0]
        name = self._name(leaving)
        assert name is not None
        if drained:
            told = self._service.manage("workers", "--drain", name, "--wait", timeout=60)
            assert "has no jobs any more" in told
        leaving.send_signal(signal.SIGTERM)
        assert leaving.wait(60) == 0
        del self.processes[0]
        self.add()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def _name(self, process: Popen[bytes]) -> str | None:
        """Once it serves."""
        assert process.poll() is None
        live = watch_workers(self._client, "quire:")
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

    def __init__(self, service: ScriptedInstallation) -> None:
        self._service = service
        self._stopping = False
        self._next_seed = 0
        self.job_ids: list[str] = []
        self._running = asyncio.Event()

    async def watch(self, act: Any) -> None:
        """While something is done in a thread."""
        async with self._service.async_client(timeout=60) as client:
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
            model=MODEL, prompt=[7], max_tokens=LENGTH, seed=seed, stream=True,
            extra_body={"return_token_ids": True},
        ):  # fmt: skip
            if not numbers:
                self.job_ids.append(chunk.id)
                if len(self.job_ids) == CLIENTS:
                    self._running.set()
            numbers.append(chunk.sequence_number)
            ids += chunk.choices[0].token_ids
        assert numbers == list(range(1, LENGTH + 1))
        assert ids == tokens(seed, LENGTH)


def attempts(service: ScriptedInstallation, job_ids: list[str]) -> set[int]:
    with connect(service.redis_url) as client:
        return {int(client.hget(f"quire:job:{job_id}", "attempt")) for job_id in job_ids}


def test_drained_workers_are_replaced_and_no_stream_notices(scripted, fleet):
    audience = Audience(scripted)

    def roll():
        fleet.replace(drained=True)
        fleet.replace(drained=True)

    asyncio.run(audience.watch(roll))
    assert len(audience.job_ids) >= 2 * CLIENTS
    assert attempts(scripted, audience.job_ids) == {1}  # who was drained ended what it had


def test_a_worker_that_is_only_told_to_stop_hands_its_streams_over(scripted, fleet):
    audience = Audience(scripted)
    asyncio.run(audience.watch(lambda: fleet.replace(drained=False)))
    assert max(attempts(scripted, audience.job_ids)) == 2
