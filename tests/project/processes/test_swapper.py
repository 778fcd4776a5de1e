"""The children of a worker with several models, on a real queue."""

import sys
import threading

import pytest

from completions.jobs.execute import Execution
from completions.jobs.sharding.shards import Shards
from completions.jobs.store import JobStore
from completions.jobs.workers import list_standby_sync
from project.processes import swapper
from project.processes.supervisor import REFUSED
from project.processes.swapper import Swapper
from tests.faults.invariants import until

pytestmark = pytest.mark.integration

BEATS = """
import socket, os, sys, time, signal, orjson, redis
client = redis.Redis.from_url(sys.argv[1])
own = f"{socket.gethostname()}-{os.getpid()}-x"
client.rpush("s:started", sys.argv[2])
def stop(*_):
    client.delete(f"s:worker:{own}")
    sys.exit()
signal.signal(signal.SIGTERM, stop)
while True:
    client.set(f"s:worker:{own}", orjson.dumps({"model": sys.argv[2], "jobs": 0}), ex=10)
    client.sadd("s:workers", own)  # with each heartbeat: names without one are forgotten
    time.sleep(0.05)
"""
"""A worker that never has a job."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(swapper, "LOOK_INTERVAL", 0.05)
    monkeypatch.setattr(swapper.signal, "signal", lambda *_: None)  # not in the main thread


def wait(redis_client, models):
    """Wait until these models were started, in this order."""
    for model in models:
        started = until(lambda: redis_client.lpop("s:started"), "a model is started", 60)
        assert started.decode() == model


@pytest.mark.wide
def test_the_model_that_is_waited_for_is_loaded(valkey, redis_client):
    store = JobStore(redis_client, "s:")
    command = [sys.executable, "-c", BEATS, valkey.url]
    chooser = Swapper(
        Shards.make_single(store), ["a", "b", "c"], lambda model: [*command, model], grace=5
    )
    for state in chooser._states.values():
        state.load_seconds = 0.5
    thread = threading.Thread(target=chooser.run)
    thread.start()
    try:
        wait(redis_client, ["a"])
        assert list_standby_sync(store) == {"a", "b", "c"}
        redis_client.zadd("s:turns:3:c", {"organization": 1})
        wait(redis_client, ["c"])
        redis_client.zadd("s:turns:1:b", {"organization": 1})
        Execution(store, "another").beat("b", {})  # takes them
        redis_client.zadd("s:turns:1:a", {"organization": 1})
        wait(redis_client, ["a"])
    finally:
        chooser._on_signal(15, None)
        thread.join(60)
    assert redis_client.keys("s:worker:*-x") == []


def test_a_model_that_cannot_be_served_is_left_out(redis_client):
    commands = []

    def make_command(model):
        commands.append(model)
        return ["sh", "-c", f"exit {REFUSED}"]

    shards = Shards.make_single(JobStore(redis_client, "s:"))
    assert Swapper(shards, ["a", "b"], make_command, 1).run() == REFUSED
    assert commands == ["a", "b"]


def test_a_worker_that_ends_is_started_again(redis_client):
    codes = iter([1, 1, REFUSED])
    shards = Shards.make_single(JobStore(redis_client, "s:"))
    chooser = Swapper(shards, ["a"], lambda _: ["sh", "-c", f"exit {next(codes)}"], 1)
    assert chooser.run() == REFUSED
    assert list(codes) == []
