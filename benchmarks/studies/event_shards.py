"""What an event of a stream costs Redis, against the number of shards.

    python -m benchmarks.studies.event_shards --shards 1,2,4,8 --streams 64 --step 0.025

For each shard there is a server, a web process's reader, and a worker with as many streams as
`--streams`, which lie in `--spread` shards alike; by default in all, as those of many organizations
do. With `--spread 1`, each worker's streams lie in one shard, as those of one large organization.
So a step of a worker gives a shard as many events as there are streams / spread. The workers show
and store what a stream gains as the relay does. Events per second of processor time are those of
all servers together: with a cost that does not depend on the number of shards, they stay the same.
With `--in-turn`, one worker runs at a time, and its shard's server is measured: otherwise all
servers, workers and the reader share the machine's cores, which a shard has for itself in an
installation. With `--pace 10`, steps and stores follow each other ten times as fast, as if each
worker were ten: a server that has more to do wakes less often for it.
"""

import argparse
import asyncio
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import command_line
from benchmarks.service.installation import Usage
from completions.contract.job_request import JobRequest
from completions.contract.sampling import SamplingParams
from completions.jobs.connection import connect, connect_async
from completions.jobs.events import ChoiceEvent
from completions.jobs.execute import Claim, Output, StepEvent
from completions.jobs.new_job import NewJob
from completions.jobs.reading.follow import EventReader
from completions.jobs.reading.follower import Take
from completions.jobs.sharding.execution import ShardedExecution
from completions.jobs.sharding.shards import name_shard
from completions.jobs.store import JobStore, SyncStore
from completions.jobs.submit import Submission
from project.processes.valkey import find_binary

WEB = "web"
STORED_EVERY = 0.25
"""Seconds, as in `workers/relay.py`."""
LEASE_INTERVAL = 2.0
"""Seconds between two renewals of the web process's lease."""


@dataclass(frozen=True)
class Server:
    """A shard's Valkey."""

    url: str
    prefix: str
    pid: int

    def connect(self) -> SyncStore:
        return JobStore(connect(self.url), self.prefix)


@contextmanager
def serve(number: int) -> Iterator[Server]:
    """Run a Valkey for a shard."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        socket = Path(folder) / "valkey.sock"
        options = ["--port", "0", "--unixsocket", str(socket), "--dir", folder]
        durable = ["--appendonly", "yes", "--save", ""]
        process = subprocess.Popen(
            [str(find_binary()), *options, *durable], stdout=subprocess.DEVNULL
        )
        try:
            while not socket.exists():
                time.sleep(0.01)
            server = Server(f"unix://{socket}?db=0", f"quire:{{{number}}}:", process.pid)
            store = server.connect()
            store.call("served", "m")
            store.client.close()
            yield server
        finally:
            process.kill()
            process.wait()


async def submit(servers: Sequence[Server], organization_id: int, web: str = WEB) -> str:
    """Submit a stream of an organization through a web process. Returns its id."""
    shard = organization_id % len(servers)
    job_id = name_shard(f"cmpl-{uuid.uuid4().hex}", organization_id, len(servers))
    client = connect_async(servers[shard].url)
    submission = Submission(JobStore(client, servers[shard].prefix), web)
    await submission.renew_lease()
    request = JobRequest(((1, 2),), SamplingParams(max_tokens=1000))
    await submission.submit(
        NewJob(job_id, "stream", "m", organization_id, 1, request, b"", 600, 60)
    )
    await client.aclose()
    return job_id


class Streams:
    """A worker's streams, each of which gains a token per step."""

    def __init__(self, claims: Sequence[object], count: int) -> None:
        """``claims`` are the replies to a worker that has claimed ``count`` streams."""
        self._claims = [each for each in claims if isinstance(each, Claim)]
        assert len(self._claims) == count
        self._unstored: list[list[StepEvent]] = [[] for _ in self._claims]

    def gain(self, number: int, is_storing: bool) -> Output:
        """Return what the worker sends in its step of this number, from 1 on: it shows the tokens,
        and may store what has not been stored yet."""
        gained = [
            StepEvent(each.job_id, each.attempt, number, [ChoiceEvent(0, [35], "c")])
            for each in self._claims
        ]
        for unstored, one in zip(self._unstored, gained, strict=True):
            unstored.append(one)
        joined = [StepEvent.join(each) for each in self._unstored] if is_storing else []
        if is_storing:
            self._unstored = [[] for _ in self._claims]
        shown = [(each.reader, one) for each, one in zip(self._claims, gained, strict=True)]
        return Output(joined, (), shown, is_storing)


class Worker:
    """Gives each of its streams a token per step."""

    def __init__(self, name: str, servers: Sequence[Server], job_ids: Sequence[str]) -> None:
        self._stores = [server.connect() for server in servers]
        self._execution = ShardedExecution(self._stores, name)
        self._execution.beat("m", {})
        self._streams = Streams(self._execution.claim(job_ids), len(job_ids))

    def run(self, step: float, pace: float, until: threading.Event) -> None:
        number, stored_at, due = 1, 0.0, time.monotonic()
        while not until.is_set():
            is_storing = time.monotonic() - stored_at >= STORED_EVERY / pace
            self._execution.send(self._streams.gain(number, is_storing))
            if is_storing:
                stored_at = time.monotonic()
                self._execution.beat("m", {})
            number, due = number + 1, due + step / pace
            time.sleep(max(0.0, due - time.monotonic()))
        for store in self._stores:
            store.client.close()


def choose_organization(worker: int, stream: int, count: int, spread: int) -> int:
    """Return the organization of a worker's stream, so that these lie in `spread` shards."""
    return count * stream + (worker + stream % spread) % count


async def measure(count: int, args: argparse.Namespace) -> tuple[float, int]:
    """Return the processor time of the measured servers in a run, and the events that were read."""
    spread = min(args.spread or count, count)
    with ExitStack() as stack:
        servers = [stack.enter_context(serve(number)) for number in range(count)]
        heard = 0

        def take(event: Sequence[ChoiceEvent]) -> bool:
            nonlocal heard
            heard += len(event)
            return True

        readers = [EventReader(it.url, it.prefix, WEB, lambda: None) for it in servers]
        tasks = [asyncio.create_task(reader.run()) for reader in readers]
        tasks += [asyncio.create_task(_keep_lease(server)) for server in servers]
        ids = [
            [
                await submit(servers, choose_organization(worker, n, count, spread))
                for n in range(args.streams)
            ]
            for worker in range(count)
        ]
        for job_id in (job_id for own in ids for job_id in own):
            reader = readers[int(job_id[-2:], 16) % count]
            tasks.append(asyncio.create_task(_follow(reader, job_id, take)))
        made = [
            await asyncio.to_thread(Worker, f"worker-{n}", servers, own)
            for n, own in enumerate(ids)
        ]
        # A thread for each: the event loop's own pool has six on two cores.
        threads = stack.enter_context(ThreadPoolExecutor(count))
        groups = [[n] for n in range(count)] if args.in_turn else [list(range(count))]
        spent, events = 0.0, 0
        for group in groups:
            done = threading.Event()
            running = [
                asyncio.get_running_loop().run_in_executor(
                    threads, made[n].run, args.step, args.pace, done
                )
                for n in group
            ]
            measured = [servers[n] for n in group]
            await asyncio.sleep(2)
            begin, before = heard, sum(Usage.of(server.pid).cpu for server in measured)
            await asyncio.sleep(args.seconds / len(groups))
            events += heard - begin
            spent += sum(Usage.of(server.pid).cpu for server in measured) - before
            done.set()
            await asyncio.gather(*running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for reader in readers:
            await reader.close()
    return spent, events


async def _keep_lease(server: Server) -> None:
    """Keep the web process's lease, without which its streams are cancelled."""
    client = connect_async(server.url)
    submission = Submission(JobStore(client, server.prefix), WEB)
    try:
        while True:
            await submission.renew_lease()
            await asyncio.sleep(LEASE_INTERVAL)
    finally:
        await client.aclose()


async def _follow(reader: EventReader, job_id: str, take: Take) -> None:
    async for event in reader.follow(job_id, take=take):
        if isinstance(event, list):  # it came while this task did not wait
            take(event)


def main() -> None:
    parser = command_line.parser(
        __doc__, shards=[1, 2, 4, 8], streams=64, step=0.025, pace=1.0, seconds=15.0, spread=0
    )
    parser.add_argument("--in-turn", action="store_true", help="one worker at a time")
    args = parser.parse_args()
    if args.in_turn and args.spread != 1:
        parser.error("--in-turn needs --spread 1: a worker whose streams lie in one shard")
    command_line.print_columns("shards", "events/s", "us of Redis", "events/cpu s")
    for count in args.shards:
        cpu, events = asyncio.run(measure(count, args))
        command_line.print_columns(
            count, round(events / args.seconds), f"{1e6 * cpu / events:.1f}", round(events / cpu)
        )


if __name__ == "__main__":
    main()
