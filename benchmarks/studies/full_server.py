"""What an event of a stream costs a server of Redis that has no time to wait.

    python -m benchmarks.studies.full_server [--workers 25 --streams 64 --webs 1,8,64 --seconds 10]

A server that wakes for each worker's step spends much of its time on waking. Here the steps of all
workers arrive together, as they do where a server is busy with one while the next arrive: each
worker shows a token of each of its streams, stores what they gained every ten steps, as it does at
39 tokens a second, and `--webs` processes hear what is shown. A step takes a message for each of
them that reads some of the worker's streams. Figures are processor time of the server.
"""

import asyncio
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

from benchmarks import command_line
from benchmarks.service.installation import Usage
from benchmarks.studies.event_shards import Server, Streams, serve, submit
from completions.jobs.execute import Execution
from completions.jobs.store import ScriptCall, SyncStore

STORED_EVERY = 10
"""Steps, at some 40 tokens a second."""
_READ = 1 << 18


class Outbox:
    """Stands for a store: keeps the calls of many workers for one round trip."""

    def __init__(self) -> None:
        self.calls: list[ScriptCall] = []

    def call_all(self, calls: list[ScriptCall]) -> list[object]:
        self.calls += calls
        return [[] if name == "publish" else 0 for name, _ in calls]


class Worker:
    """Gives each of its streams a token per step."""

    def __init__(self, name: str, store: SyncStore, outbox: Outbox, job_ids: list[str]) -> None:
        execution = Execution(store, name)
        execution.beat("m", {})
        self._streams = Streams(execution.claim(job_ids), len(job_ids))
        self._execution = Execution(cast("SyncStore", outbox), name)

    def step(self, number: int, is_storing: bool) -> None:
        self._execution.send(self._streams.gain(number, is_storing))


def listen(server: Server, web: str) -> socket.socket:
    """Listen on the channel of a web process, as that does."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(urlsplit(server.url).path)
    connection.sendall(f"SSUBSCRIBE {server.prefix}ctl:{web}\r\n".encode())
    connection.recv(_READ)
    return connection


def read_shown(connections: Sequence[socket.socket], done: threading.Event) -> None:
    """Receive what is shown to web processes."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        while not done.is_set():
            for ready, _ in selector.select(0.1):
                cast("socket.socket", ready.fileobj).recv(_READ)


def measure(workers: int, streams: int, webs: int, seconds: float) -> tuple[float, int]:
    """Return the server's processor time, and the events that were shown."""
    with serve(0) as server:
        store, outbox = server.connect(), Outbox()
        ids = [
            [asyncio.run(submit([server], n, f"web-{(n + own) % webs}")) for n in range(streams)]
            for own in range(workers)
        ]
        made = [Worker(f"worker-{n}", store, outbox, own) for n, own in enumerate(ids)]
        done = threading.Event()
        connections = [listen(server, f"web-{web}") for web in range(webs)]
        reader = threading.Thread(target=read_shown, args=(connections, done))
        reader.start()
        number, events, before = 0, 0, 0.0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            number += 1
            for turn, worker in enumerate(made):
                worker.step(number, is_storing=(number + turn) % STORED_EVERY == 0)
            replies = store.call_all(outbox.calls)
            outbox.calls = []
            assert not any(any(each) if isinstance(each, list) else each for each in replies)
            if number == STORED_EVERY:  # all have stored once
                before, events = Usage.of(server.pid).cpu, 0
            events += workers * streams
        spent = Usage.of(server.pid).cpu - before
        done.set()
        reader.join()
        for connection in connections:
            connection.close()
        store.client.close()
        return spent, events


def main() -> None:
    args = command_line.parser(
        __doc__, workers=25, streams=64, webs=[1, 8, 64], seconds=10.0
    ).parse_args()
    command_line.print_columns("webs", "events", "us of Redis", "events/cpu s")
    for webs in args.webs:
        cpu, events = measure(args.workers, args.streams, webs, args.seconds)
        rate = f"{1e6 * cpu / events:.2f}"
        command_line.print_columns(webs, events, rate, round(events / cpu))


if __name__ == "__main__":
    main()
