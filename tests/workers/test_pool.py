"""The pool as Celery drives it, over a relay that only remembers."""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from celery.worker import state

from workers.pool import GENERATE, EnginePool, FollowDrain, RefreshVisibility


class RememberingRelay:
    def __init__(self):
        self.jobs = {}
        self.calls = []
        self.drain_wanted = False
        self.accepting = True

    def start(self):
        self.calls.append("start")

    def submit(self, job_id, done):
        self.jobs[job_id] = done

    def wait_idle(self, timeout=None):
        self.calls.append(("wait_idle", timeout))
        return False

    def stop(self):
        self.calls.append("stop")


@pytest.fixture
def pool():
    relay = RememberingRelay()

    class Pool(EnginePool):
        relay_factory = staticmethod(lambda: relay)
        shutdown_grace = 7.0
        queue = "gen.m"

    pool = Pool(limit=3)
    pool.start()
    return pool


def deliver(pool, *arguments, name=GENERATE):
    """Apply a task as `celery.worker.request.Request.execute_using_pool` does."""
    accepted, finished = [], []
    handle = pool.apply_async(
        None,
        args=(name, "message id", {"args": list(arguments)}, b"", "application/json", "utf-8"),
        accept_callback=lambda pid, at: accepted.append(pid),
        callback=finished.append,
        timeout_callback=None,
        correlation_id="message id",
    )
    return handle, accepted, finished


def test_a_message_is_acknowledged_when_its_job_has_ended(pool):
    handle, accepted, finished = deliver(pool, "job")
    assert handle.job_id == "job"
    assert accepted  # before, Celery would only note a revocation
    assert finished == []
    pool.relay.jobs["job"]()
    ((failed, result, runtime),) = finished
    assert (failed, result) == (False, None)
    assert runtime >= 0


def test_another_task_is_dropped(pool):
    """Celery's own tasks are known to every worker."""
    _, accepted, finished = deliver(pool, "job", name="celery.group")
    assert len(accepted) == len(finished) == 1
    assert pool.relay.jobs == {}


def test_a_warm_shutdown_waits_for_running_jobs_and_a_cold_one_does_not(pool):
    pool.stop()
    assert pool.relay.calls == ["start", ("wait_idle", 7.0), "stop"]
    pool.relay.calls.clear()
    pool.terminate()
    assert pool.relay.calls == ["stop"]


def test_celery_sees_as_many_slots_as_messages_may_wait(pool):
    assert pool.num_processes == 3


class Consumer:
    """The part of Celery's consumer that a step uses."""

    def __init__(self, pool):
        self.pool = pool
        self.calls = []

    def cancel_task_queue(self, queue):
        self.calls.append(("cancel", queue))

    def add_task_queue(self, queue):
        self.calls.append(("add", queue))


def test_a_drained_worker_stops_consuming_until_it_is_resumed(pool):
    consumer = Consumer(pool)
    step = FollowDrain(SimpleNamespace(timer=None))
    step.act(consumer)
    assert consumer.calls == []
    pool.relay.drain_wanted = True
    step.act(consumer)
    step.act(consumer)
    assert consumer.calls == [("cancel", "gen.m")]
    assert not pool.relay.accepting
    pool.relay.drain_wanted = False
    step.act(consumer)
    step.act(consumer)
    assert consumer.calls == [("cancel", "gen.m"), ("add", "gen.m")]
    assert pool.relay.accepting


@pytest.mark.parametrize("arguments", [(), ("a", "b"), ({"an": "object"},), (7,)])
def test_a_message_that_is_not_a_job_id_is_dropped(pool, arguments):
    _, accepted, finished = deliver(pool, *arguments)
    assert len(accepted) == len(finished) == 1
    assert pool.relay.jobs == {}


class ChangingSet(set):
    """Changes whenever it is read, as if another thread had won the race."""

    def __iter__(self):
        raise RuntimeError("Set changed size during iteration")


def test_unacknowledged_messages_stay_invisible_while_requests_end(monkeypatch):
    requests = [
        Mock(acknowledged=acknowledged, message=SimpleNamespace(delivery_tag=tag))
        for tag, acknowledged in (("runs", False), ("ended", True))
    ]
    monkeypatch.setattr(state, "requests", {str(i): each for i, each in enumerate(requests)})
    monkeypatch.setattr(state, "reserved_requests", ChangingSet(requests))
    client = Mock()

    @contextmanager
    def connected():
        yield client

    channel = SimpleNamespace(conn_or_acquire=connected, unacked_index_key="index")
    consumer = SimpleNamespace(task_consumer=SimpleNamespace(channel=channel))
    RefreshVisibility(SimpleNamespace(timer=None)).act(consumer)
    ((key, tags), options) = client.zadd.call_args
    assert (key, list(tags), options) == ("index", ["runs"], {"xx": True})
