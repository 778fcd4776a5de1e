"""What an event of a stream costs a web process with a core of its own, by how busy it is.

    python -m benchmarks.studies.full_web [--streams 128,256,512,768 --step 0.0256 --seconds 10]

A process that sleeps between two messages runs the next one slowly, so a busy one spends less on
an event. Real workers and clients load a small machine before they load the web process; so the
streams here are requested over bare sockets, whose bytes are counted and not parsed, and their
jobs are run by nobody: what workers would show is published for them, one message for each `--each`
streams and step, as evenly as that many workers do. The web process has the last core, and all else
the others. Figures are its processor time, with all that it does besides.
"""

import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import cast

import redis

from benchmarks import command_line
from benchmarks.service.installation import MODEL, Installation, Usage, installation
from benchmarks.service.saturation import SETTINGS, give_core
from benchmarks.service.streams import Caller
from completions.jobs.connection import connect
from completions.jobs.events import ChoiceEvent, encode_gains, encode_line, join_lines
from completions.jobs.execute import Execution
from completions.jobs.store import JobStore

_READ = 1 << 16
_EVENT = b"\ndata: "
_TEXTS = (" the", " of", " a", " completion", ",")
BEAT = 2.0
"""Seconds between two heartbeats of the worker that serves the model in name only."""


class Clients:
    """Streams over bare sockets, read by a thread that counts their events."""

    def __init__(self, service: Installation, count: int) -> None:
        self.events = 0
        self.has_ended = False
        """Whether the web process has ended one of them."""
        self._connections = []
        self._selector = selectors.DefaultSelector()
        caller = Caller(service.port, MODEL, 1000, scripted=True, token_ids=False)
        for number in range(count):
            connection = socket.create_connection(("127.0.0.1", service.port))
            connection.sendall(caller.request(service.key, number))
            self._connections.append(connection)
            self._selector.register(connection, selectors.EVENT_READ)
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._is_done.is_set():
            for ready, _ in self._selector.select(0.1):
                connection = cast("socket.socket", ready.fileobj)
                read = connection.recv(_READ)
                self.events += read.count(_EVENT)
                if not read:
                    self._selector.unregister(connection)
                    self.has_ended = True

    def close(self) -> None:
        self._is_done.set()
        self._thread.join()
        self._selector.close()
        for connection in self._connections:
            connection.close()


class Publisher:
    """Shows what streams gain, as workers do."""

    def __init__(self, client: redis.Redis, job_ids: Sequence[str], each: int) -> None:
        self._client = client
        self._workers = [job_ids[first : first + each] for first in range(0, len(job_ids), each)]
        (self._channel,) = cast("list[bytes]", client.pubsub_shardchannels("quire:ctl:*"))

    def run(self, step: float, until: threading.Event) -> None:
        number, due = 0, time.monotonic()
        while not until.is_set():
            number += 1
            gains = encode_gains([ChoiceEvent(0, [35], _TEXTS[number % len(_TEXTS)])])
            for own in self._workers:
                lines = [encode_line(each, 1, number, 1, 1, gains) for each in own]
                self._client.spublish(self._channel, join_lines(lines))
                due += step / len(self._workers)
                time.sleep(max(0.0, due - time.monotonic()))


def find_jobs(client: redis.Redis, count: int) -> list[str]:
    """Return the ids of the streams' jobs, as soon as all were submitted."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        keys = cast("list[bytes]", client.keys("quire:job:*"))
        if len(keys) == count:
            return [key.decode().removeprefix("quire:job:") for key in sorted(keys)]
        time.sleep(0.2)
    raise SystemExit("not all streams were submitted")


def measure(service: Installation, streams: int, each: int, step: float, seconds: float) -> None:
    """Measure one number of streams, and print its line."""
    with ExitStack() as stack:
        client = connect(service.redis_url)
        stack.callback(client.close)
        clients = Clients(service, streams)
        stack.callback(clients.close)
        publisher = Publisher(client, find_jobs(client, streams), each)
        done = threading.Event()
        publishing = threading.Thread(target=publisher.run, args=(step, done))
        publishing.start()
        stack.callback(publishing.join)
        stack.callback(done.set)
        time.sleep(3)
        begun, before = clients.events, Usage.of(service.pids["web"]).cpu
        at = time.monotonic()
        time.sleep(seconds)
        events, spent = clients.events - begun, Usage.of(service.pids["web"]).cpu - before
        taken = time.monotonic() - at
        if clients.has_ended:
            raise SystemExit("the web process has ended a stream")
    share = f"{100 * spent / taken:.0f} %"
    late = f"{100 * (1 - events / taken * step / streams):.0f} %"
    cost = f"{1e6 * spent / max(1, events):.1f}"
    command_line.print_columns(streams, round(events / taken), late, share, cost)


def main() -> None:
    args = command_line.parser(
        __doc__, streams=[128, 256, 512, 768], each=64, step=0.0256, seconds=10.0
    ).parse_args()
    command_line.print_columns("streams", "events/s", "late", "of a core", "us per event")
    cores = os.sched_getaffinity(0)
    for streams in args.streams:
        os.sched_setaffinity(0, cores)
        # A new one for each: streams whose clients have gone leave work behind.
        with installation({"max_model_len": 2048}, 1.0, 1, SETTINGS) as service:
            give_core(service)
            os.kill(service.pids["worker"], signal.SIGSTOP)  # so that nobody runs the jobs
            store = JobStore(connect(service.redis_url), "quire:")
            done = threading.Event()
            beating = threading.Thread(target=_beat, args=(Execution(store, "nobody"), done))
            beating.start()
            try:
                measure(service, streams, args.each, args.step, args.seconds)
            finally:
                done.set()
                beating.join()
                store.client.close()


def _beat(worker: Execution, until: threading.Event) -> None:
    while not until.wait(BEAT):
        worker.beat(MODEL, {})


if __name__ == "__main__":
    main()
