"""`manage.py workers`: who lives, and draining from the shell."""

import io
import threading
import time

import pytest
from django.core.management import CommandError, call_command

from completions.jobs.connection import connect
from completions.jobs.execute import Execution
from completions.jobs.store import JobStore

pytestmark = pytest.mark.integration


@pytest.fixture
def worker(redis_client, valkey, settings):
    """Two live workers; the second is returned."""
    settings.REDIS_URL = valkey.url
    Execution(JobStore(redis_client, settings.REDIS_PREFIX), "host-a-17").beat("tiny", {"jobs": 1})
    execution = Execution(JobStore(redis_client, settings.REDIS_PREFIX), "host-b-18")
    execution.beat("texts", {"jobs": 4, "running": 3, "waiting": 1})
    return execution


def workers(*arguments):
    output = io.StringIO()
    call_command("workers", *arguments, stdout=output)
    return output.getvalue()


def test_each_is_listed_with_what_it_does(worker):
    _, first, second = workers().splitlines()
    assert first.split() == ["serving", "1", "0", "0", "host-a-17", "tiny"]
    assert second.split() == ["serving", "4", "3", "1", "host-b-18", "texts"]


def test_a_worker_is_drained_and_resumed_by_the_beginning_of_its_id(worker):
    assert workers("--drain", "host-b") == "host-b-18 takes no new jobs within seconds\n"
    assert workers().splitlines()[2].startswith("draining")
    assert worker.beat("texts", {"jobs": 0}, accepting=False)
    assert workers().splitlines()[2].startswith("drained")
    workers("--resume", "host-b-18")
    assert not worker.beat("texts", {"jobs": 0})


def test_an_id_may_be_the_beginning_of_another(worker, redis_client, settings):
    Execution(JobStore(redis_client, settings.REDIS_PREFIX), "host-b-1").beat("tiny", {})
    assert workers("--drain", "host-b-1") == "host-b-1 takes no new jobs within seconds\n"


def test_waiting_ends_when_the_last_job_has(worker, valkey, settings):
    printed = []
    thread = threading.Thread(target=lambda: printed.append(workers("--drain", "host-b", "--wait")))
    thread.start()
    deadline = time.monotonic() + 60
    with connect(valkey.url) as client:
        execution = Execution(JobStore(client, settings.REDIS_PREFIX), "host-b-18")
        while not execution.beat("texts", {"jobs": 1}, accepting=False):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert thread.is_alive()
        execution.beat("texts", {"jobs": 0}, accepting=False)
    thread.join(60)
    assert printed == ["host-b-18 has no jobs any more\n"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--drain", "nobody"), "no live worker's id begins with 'nobody'"),
        (("--resume", "host-"), "matches several workers"),
        (("--wait",), "--wait needs --drain"),
    ],
)
def test_what_cannot_be_done_says_why(worker, arguments, reason):
    with pytest.raises(CommandError, match=reason):
        workers(*arguments)


def test_without_workers_the_command_fails(redis_client, valkey, settings):
    settings.REDIS_URL = valkey.url
    with pytest.raises(CommandError, match="no engine worker is alive"):
        workers()


def test_the_command_fails_without_redis(settings, tmp_path):
    settings.REDIS_URL = f"unix://{tmp_path}/absent.sock"
    with pytest.raises(CommandError, match="Redis does not answer"):
        workers()
