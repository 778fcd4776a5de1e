"""What a worker shows before it is stored: nothing of it is lost or computed again, whoever takes
the job."""

import pytest

from completions.jobs import operate
from completions.jobs.events import EndEvent, decode_entry, decode_lines
from completions.jobs.execute import Claim, Execution, Output, Showing, StepEvent, Verdict
from completions.jobs.store import JobStore
from tests.completions.jobs.job_making import PREFIX, die, ending, new_job, step, stream

pytestmark = pytest.mark.integration


@pytest.fixture
def claimed(submission, worker):
    """Submits streams, of which the worker stores the first token."""

    async def claim(*job_ids, kind="stream"):
        claims = []
        for job_id in job_ids:
            await submission.submit(new_job(job_id, kind))
            (each,) = worker.claim([job_id])
            worker.publish([gain(each, 1)], [])
            claims.append(each)
        return claims

    return claim


def gain(claim, number) -> StepEvent:
    """The step in which a job gained the token of that number."""
    return step(claim, [(0, [number], f"{number} ", None, None)], number)


def show(worker, *steps) -> Showing:
    return worker.send(Output(shown=[("web-1", each) for each in steps])).showing


def store(worker, *steps) -> list[Verdict]:
    return list(worker.send(Output(steps=steps, is_complete=True)).verdicts)


def ask(claim, number) -> StepEvent:
    return step(claim, [], number)


def list_shown(redis_client, job_id="cmpl-1"):
    """The numbers that the web process was shown, in order."""
    numbers = []
    for _, fields in redis_client.xrange(f"{PREFIX}ctl:web-1"):
        for named, event in decode_lines(fields.get(b"s", b"")):
            if named == job_id:
                ends = isinstance(event, EndEvent)
                numbers += ["end"] if ends else [choice.sequence_number for choice in event]
    return numbers


def list_stored(redis_client, job_id="cmpl-1"):
    events = stream(redis_client, job_id)
    return [n.sequence_number for e in events if not isinstance(e, EndEvent) for n in e]


async def test_a_step_is_shown_at_once_and_stored_with_others(claimed, worker, redis_client):
    (claim,) = await claimed("cmpl-1")
    assert claim.reader == "web-1"
    steps = [gain(claim, number) for number in (2, 3, 4)]
    assert [show(worker, each) for each in steps] == [Showing.SHOWN] * 3
    assert list_shown(redis_client) == [2, 3, 4]
    assert list_stored(redis_client) == [1]
    assert store(worker, StepEvent.join(steps)) == [Verdict.GO_ON]
    first, rest = stream(redis_client)
    assert [choice.sequence_number for choice in (*first, *rest)] == [1, 2, 3, 4]
    assert not redis_client.exists(f"{PREFIX}shown:{worker.worker_id}")
    record = read_record(redis_client)
    assert (record.sequence_number, record.generated) == (5, 4)
    worker.publish([], [ending(claim, 5)])
    assert list_shown(redis_client) == [2, 3, 4, "end"]


def read_record(redis_client, job_id="cmpl-1"):
    return operate.read_job(JobStore(redis_client, PREFIX), job_id)


@pytest.mark.parametrize("how", ["dies", "gives back", "is requeued", "times out"])
async def test_the_next_attempt_goes_on_after_what_was_seen(
    claimed, worker, other_worker, redis_client, how
):
    claim, other = await claimed("cmpl-1", "cmpl-2")
    shown = [gain(claim, 2), gain(other, 2)], [gain(claim, 3)]
    for steps in shown:
        assert show(worker, *steps) is Showing.SHOWN
    if how == "gives back":
        worker.release([(claim.job_id, claim.attempt)], lost=False)
    elif how == "is requeued":
        assert operate.requeue(JobStore(redis_client, PREFIX), claim.job_id) == "running"
    else:
        die(redis_client, worker)
    if how == "times out":
        redis_client.hset(f"{PREFIX}job:cmpl-1", "deadline", 1)
    (again,) = other_worker.claim([claim.job_id])
    assert list_stored(redis_client) == [1, 2, 3]
    if how == "times out":
        assert stream(redis_client)[-1].usage.completion_tokens == 3
        assert list_shown(redis_client) == [2, 3, "end"]
        return
    assert isinstance(again, Claim)
    assert again.sequence_number == 4
    assert other_worker.read_published("cmpl-1").tokens == {0: [1, 2, 3]}
    assert list_stored(redis_client, "cmpl-2") == [1]  # it is still the worker's


@pytest.mark.parametrize("again", [False, True], ids=["once", "repeated"])
async def test_a_worker_whose_job_was_taken_shows_nothing_before_it_asked(
    claimed, worker, other_worker, redis_client, again
):
    lost, kept = await claimed("cmpl-1", "cmpl-2")
    die(redis_client, worker)  # it was stopped for some time
    (claim,) = other_worker.claim([lost.job_id])
    worker.beat("m", {})
    for _ in range(1 + again):
        assert show(worker, gain(lost, 2), gain(kept, 2)) is Showing.REFUSED
    assert list_shown(redis_client) == list_shown(redis_client, "cmpl-2") == []
    assert show(other_worker, gain(claim, 2)) is Showing.SHOWN
    for _ in range(1 + again):
        asked = Output([gain(lost, 2), gain(kept, 2)], (), [("web-1", gain(lost, 2))], True)
        reply = worker.send(asked)
        assert list(reply.verdicts) == [Verdict.NOT_YOURS, Verdict.GO_ON]
        assert reply.showing is Showing.REFUSED
    assert store(worker, ask(kept, 3)) == [Verdict.GO_ON]
    assert show(worker, gain(kept, 3)) is Showing.SHOWN
    assert list_shown(redis_client) == [2]
    assert list_stored(redis_client, "cmpl-2") == [1, 2]


async def test_a_cancelled_job_is_asked_about_at_its_next_step(claimed, worker, submission):
    (claim,) = await claimed("cmpl-1")
    await submission.cancel("cmpl-1")
    assert show(worker, gain(claim, 2)) is Showing.REFUSED
    assert store(worker, gain(claim, 2)) == [Verdict.CANCEL]
    assert show(worker, gain(claim, 3)) is Showing.REFUSED  # until the job has ended
    worker.publish([], [ending(claim, 3, "cancelled")])
    assert store(worker) == []


async def test_what_redis_lost_is_neither_shown_as_stored_nor_skipped(
    claimed, worker, redis_client
):
    """It was restored without its last second: tokens 2 to 4 are unknown to it."""
    (claim,) = await claimed("cmpl-1")
    assert show(worker, gain(claim, 5)) is Showing.SHOWN
    assert store(worker, gain(claim, 5)) == [Verdict.NOT_YOURS]
    assert list_stored(redis_client) == [1]
    assert read_record(redis_client).state == "queued"


async def test_a_reply_that_was_lost_changes_nothing(claimed, worker, redis_client):
    (claim,) = await claimed("cmpl-1")
    output = Output([gain(claim, 2)], (), [("web-1", gain(claim, 2))], True)
    for _ in range(2):
        reply = worker.send(output)
        assert (list(reply.verdicts), reply.showing) == ([Verdict.GO_ON], Showing.SHOWN)
    assert list_shown(redis_client) == [2, 2]
    die(redis_client, worker)
    operate.requeue(JobStore(redis_client, PREFIX), "cmpl-1")
    assert list_stored(redis_client) == [1, 2]


async def test_a_worker_learns_that_nobody_reads_a_stream_that_goes_on(
    claimed, worker, submission, redis_client
):
    (claim,) = await claimed("cmpl-1")
    redis_client.hset(f"{PREFIX}job:cmpl-1", "web", "")  # as that of a stored response
    assert store(worker, ask(claim, 2)) == [Verdict.GO_ON]
    await submission.drop_lease()
    assert store(worker, ask(claim, 2)) == [Verdict.UNREAD]


async def test_a_web_process_that_listens_gets_messages_alone(claimed, worker, redis_client):
    (claim,) = await claimed("cmpl-1")
    listening = connect_pubsub(redis_client)
    assert show(worker, gain(claim, 2)) is Showing.SHOWN
    store(worker, gain(claim, 2))
    worker.publish([], [ending(claim, 3)])
    ((_, (token,)), (_, end)) = (decode_one(listening) for _ in range(2))
    assert (token.sequence_number, end.state) == (2, "completed")
    entry_id, fields = redis_client.xrevrange(f"{PREFIX}ev:cmpl-1", count=1)[0]
    assert end == decode_entry(entry_id, fields[b"d"])  # with the same time
    assert list_shown(redis_client) == []
    listening.close()


def connect_pubsub(client):
    """Listen as web-1 does."""
    listening = client.pubsub()
    listening.execute_command("SSUBSCRIBE", f"{PREFIX}ctl:web-1")
    assert listening.parse_response()[0] == b"ssubscribe"
    return listening


def decode_one(listening):
    kind, _, lines = listening.parse_response()
    assert kind == b"smessage"
    (line,) = decode_lines(lines)
    return line


async def test_other_jobs_have_no_reader(claimed, redis_client):
    (claim,) = await claimed("cmpl-1", kind="background")
    assert claim.reader == ""
    assert not redis_client.exists(f"{PREFIX}ctl:web-1")


def look_again(worker):
    """Let the worker look for earlier ones, as one does after some seconds."""
    worker._store.client.delete(f"{PREFIX}looked")
    worker.beat("m", {})


async def test_all_is_stored_while_an_earlier_worker_lives(claimed, worker, redis_client):
    (claim,) = await claimed("cmpl-1")
    assert show(worker, gain(claim, 2)) is Showing.SHOWN
    redis_client.set(f"{PREFIX}worker:earlier", b'{"model":"m"}')
    redis_client.sadd(f"{PREFIX}workers", "earlier")
    look_again(worker)
    assert redis_client.ttl(f"{PREFIX}storing") > 0
    assert show(worker, gain(claim, 3)) is Showing.STORE
    assert list_shown(redis_client) == [2, 3]
    redis_client.delete(f"{PREFIX}storing", f"{PREFIX}worker:earlier")
    look_again(worker)
    assert show(worker, gain(claim, 4)) is Showing.SHOWN


def test_a_worker_that_just_started_looks_for_earlier_ones(redis_client):
    redis_client.set(f"{PREFIX}worker:earlier", b'{"model":"m"}')
    redis_client.sadd(f"{PREFIX}workers", "earlier")
    Execution(JobStore(redis_client, PREFIX), "new").beat("m", {})
    assert redis_client.exists(f"{PREFIX}storing")


def test_one_worker_looks_however_many_there_are(redis_client):
    """Each would look once in as many heartbeats as there are workers, most of them earlier ones:
    too seldom."""
    store = JobStore(redis_client, PREFIX)
    names = [f"earlier-{n}" for n in range(100)]
    redis_client.sadd(f"{PREFIX}workers", *names)
    for name in names:
        redis_client.set(f"{PREFIX}worker:{name}", b'{"model":"m"}')
    first, second = Execution(store, "first"), Execution(store, "second")
    first.beat("m", {})
    redis_client.delete(f"{PREFIX}storing")
    second.beat("m", {})
    assert not redis_client.exists(f"{PREFIX}storing")  # the first has just looked
    assert 0 < redis_client.ttl(f"{PREFIX}looked") < 10
    redis_client.delete(f"{PREFIX}looked")  # it has expired
    first.beat("m", {})
    assert redis_client.exists(f"{PREFIX}storing")
