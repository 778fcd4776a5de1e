"""The demo model in two processes: it answers as in one, and the death of either loses no token."""

import contextlib
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from tests.acceptance.service import MODEL, Installation
from tests.running import until_gone

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

RANKS = 2
TOKENS = 120
MANY_TOKENS = 400
"""So many that no stream ends between its first tokens and a kill."""
FOLLOWER = b"workers.engine.follower"
ENDLESS = {"ignore_eos": True, "return_token_ids": True}


class Split(Installation):
    def more_models(self) -> str:
        return f"tensor_parallel_size = {RANKS}\n"  # of the demo model, the only one


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    # Two processes on a busy machine take longer for MANY_TOKENS than a request has by default.
    own = {"QUIRE_SHUTDOWN_GRACE": "120", "QUIRE_REQUEST_TIMEOUT": "1800"}
    with Split(tmp_path_factory.mktemp("split"), **own) as installation:
        installation.wait_served(MODEL)
        yield installation


class Stream:
    """The token ids of a stream, as another thread receives them."""

    def __init__(self, service, seed, max_tokens=TOKENS):
        self.token_ids = []
        self.finish_reason = None
        self.began = threading.Event()
        self._service, self._seed, self._max_tokens = service, seed, max_tokens
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        with self._service.client() as client:
            for chunk in client.completions.create(
                model=MODEL, prompt=[9703, 338], max_tokens=self._max_tokens, seed=self._seed,
                stream=True, extra_body=ENDLESS, timeout=240,
            ):  # fmt: skip
                for choice in chunk.choices:
                    self.token_ids += choice.token_ids or []
                    self.finish_reason = choice.finish_reason or self.finish_reason
                    if len(self.token_ids) > 3:
                        self.began.set()

    def wait(self):
        self._thread.join(1200)
        assert not self._thread.is_alive(), self._service.logs()
        return self.token_ids


def followers(worker):
    """The pids of the worker's followers."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == worker and FOLLOWER in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def test_constraints_hold(split):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    with split.client() as client:
        completion = client.completions.create(
            model=MODEL, prompt=[9703], max_tokens=80, n=2, seed=1,
            extra_body={"json_schema": json.dumps(schema)},
        )  # fmt: skip
    assert len(followers(split.pid("worker"))) == RANKS - 1
    for choice in completion.choices:
        if choice.finish_reason == "stop":
            assert set(json.loads(choice.text)) == {"name", "age"}
        assert choice.text.startswith("{")


@pytest.mark.parametrize("victim", ["follower", "worker"])
def test_killing_a_rank_loses_no_token(split, victim):
    worker = split.pid("worker")
    processes = [worker, *followers(worker)]
    assert len(processes) == RANKS
    streams = [Stream(split, seed, MANY_TOKENS) for seed in range(3)]
    for stream in streams:
        assert stream.began.wait(240), split.logs()
    os.kill(processes[victim == "follower"], signal.SIGKILL)
    assert [stream.finish_reason for stream in streams] == [None] * len(streams)
    assert [len(stream.wait()) for stream in streams] == [MANY_TOKENS] * len(streams)
    assert {stream.finish_reason for stream in streams} == {"length"}
    assert split.pid("worker", besides=worker) != worker
    until_gone(processes)


def test_sigterm_lets_running_streams_end_first(split):
    worker = split.pid("worker")
    processes = [worker, *followers(worker)]
    stream = Stream(split, 7)
    assert stream.began.wait(240), split.logs()
    for pid in processes:  # as a terminal and some supervisors do
        os.kill(pid, signal.SIGTERM)
    assert len(stream.wait()) == TOKENS
    until_gone(processes)
    assert split.pid("worker", besides=worker) != worker
