"""Lines on their way from SQL to Redis: in windows, in order, each of them, and none twice."""

import pytest
from django.test import Client

from completions.batches import feeding
from completions.maintenance import tasks
from completions.models import Batch, BatchLine, LineState, UsageRecord
from tests.completions.bench import PREFIX, request

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


def test_lines_are_fed_in_windows_and_shared_among_organizations(bench, stranger, monkeypatch):
    monkeypatch.setattr(feeding, "LINES_PER_SEQUENCE", 4 / 64)  # a window of 4
    bench.create([request(f"a{n}") for n in range(6)])
    bench.turn()
    bench.turn()
    assert len(bench.sent) == 4
    bench.turn()
    assert len(bench.sent) == 4  # the window is full
    theirs = Client(headers=stranger.headers)
    monkeypatch.setattr(bench, "api", theirs)
    other = bench.create([request(f"b{n}") for n in range(6)])
    bench.turn()
    bench.work(3)
    bench.turn()  # one of ours still runs: one more of ours, two of theirs
    owners = Batch.objects.get(id=other["id"])
    new = [job_id for job_id, _, _ in bench.sent[1:]]
    assert sorted(job_id == owners.job_id(int(job_id.split("-")[-1])) for job_id in new) == [
        False, True, True,
    ]  # fmt: skip


def test_a_window_also_counts_bytes(bench, stranger, monkeypatch, settings):
    settings.MAX_QUEUED_BYTES = 12_000  # a quarter of it for lines
    bench.create([request(f"a{n}", [65] * 120) for n in range(6)])
    bench.turn()
    bench.turn()
    ours = len(bench.sent)
    assert 1 < ours < 6
    held = int(bench.client.hget(f"{PREFIX}bytes", "batch"))
    assert 3000 <= held < 3000 + held / ours
    bench.turn()
    assert len(bench.sent) == ours  # the window is full
    monkeypatch.setattr(bench, "api", Client(headers=stranger.headers))
    bench.create([request(f"b{n}", [65] * 120) for n in range(6)])
    bench.turn()
    bench.turn()
    assert ours < len(bench.sent) <= 2 * ours  # an organization's share does not wait for others
    ended = 0
    while done := bench.work():
        ended += done
        bench.turn()
    assert ended == 12


def test_no_group_of_lines_takes_much_memory(bench, monkeypatch):
    monkeypatch.setattr(feeding, "_MAX_BYTES", 2000)
    submit, groups = feeding.submit_durable, []

    def note(store, jobs, check_after):
        groups.append(len(jobs))
        return submit(store, jobs, check_after)

    monkeypatch.setattr(feeding, "submit_durable", note)
    batch = bench.create([request(f"r{n}", [65] * 120) for n in range(7)])
    assert bench.run_to_end(batch)["request_counts"]["completed"] == 7
    assert sum(groups) == 7
    assert max(groups) < 4


def test_lines_with_a_common_beginning_run_together(bench):
    red, blue = [82] * 40, [66] * 40
    prompts = [red, blue, [*red, 1], [*blue, 1], red]
    bench.create([request(f"r{n}", prompt) for n, prompt in enumerate(prompts)])
    bench.turn()
    bench.turn()
    numbers = [int(job_id.rpartition("-")[2]) for job_id, _, _ in bench.sent]
    assert numbers in ([1, 3, 5, 2, 4], [2, 4, 1, 3, 5])


def test_a_batch_says_what_its_order_saves(bench):
    facts = {"kv_blocks_total": 12, "slots": 1, "block_size": 16}
    bench.worker.execution.beat("tiny", facts)
    prefixes = [[letter] * 64 for letter in range(10)]
    prompts = [[*prefixes[n % 10], n] for n in range(40)]
    batch = bench.create([request(f"r{n}", prompt) for n, prompt in enumerate(prompts)])
    bench.turn()
    plan = bench.get(batch)["plan"]
    assert plan["prompt_tokens"] == 40 * 65
    assert plan["computed_tokens"] == 40 * 65 - 30 * 64
    assert plan["file_order_tokens"] > plan["computed_tokens"]
    numbers = []
    while len(numbers) < 40:
        bench.turn()
        numbers += [int(job_id.rpartition("-")[2]) - 1 for job_id, _, _ in bench.sent]
        assert bench.work()
    assert [number % 10 for number in numbers] == [n // 4 for n in range(40)]


def test_every_line_runs_after_redis_was_emptied(bench):
    batch = bench.create([request(f"r{n}") for n in range(6)])
    bench.turn()
    bench.turn()
    bench.work(2)
    bench.turn()
    bench.work(1)  # its result is lost with Redis
    bench.client.flushall()
    bench.worker.execution.beat("tiny", {})
    bench.sent.clear()
    done = bench.run_to_end(batch)
    assert done["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
    assert len(bench.lines(done["output_file_id"])) == 6
    assert UsageRecord.objects.count() == 6


def test_a_line_lost_between_sql_and_redis_is_sent_again(bench, monkeypatch):
    batch = bench.create([request("a")])
    with monkeypatch.context() as patch:
        patch.setattr(feeding, "submit_durable", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bench.turn()
    assert bench.sent == []
    assert bench.run_to_end(batch)["request_counts"]["completed"] == 1


def test_what_is_about_to_be_sent_is_not_taken_for_lost(bench, monkeypatch):
    """The reconciler looks while the feeder has marked a line and Redis does not have it yet."""
    batch = bench.create([request("a")])
    submit, found = feeding.submit_durable, []

    def submit_late(*args):
        tasks.reconcile()
        found.append(BatchLine.objects.get().state)
        return submit(*args)

    monkeypatch.setattr(feeding, "submit_durable", submit_late)
    bench.turn()
    bench.turn()
    assert found == [LineState.SENT]
    assert bench.run_to_end(batch)["request_counts"]["completed"] == 1


def test_a_stalled_feeder_does_not_send_what_another_had_answered(bench):
    """It has read its lines and lost its lock, and another one has sent and settled them."""
    batch = bench.create([request("a"), request("b")])
    bench.turn()
    stalled = list(BatchLine.objects.order_by("number"))
    bench.turn()
    bench.work(1)
    tasks.settle()
    (again,) = feeding.mark_sent(stalled)
    assert again.custom_id == "b"
    assert bench.run_to_end(batch)["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
