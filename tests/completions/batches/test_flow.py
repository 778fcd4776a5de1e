"""A batch from its file to its files: every status, every kind of line, every interruption."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from completions.accounts import changes
from completions.accounts.audit import SERVICE
from completions.batches import input_lines, states, validation
from completions.batches.results import storing
from completions.maintenance import tasks
from completions.models import Batch, BatchLine, BatchResult, File, UsageRecord
from tests.completions.bench import PREFIX, request

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


def test_a_batch_runs_from_its_file_to_its_output(bench):
    requests = [request(f"r{n}", prompt=[65] * (n + 1)) for n in range(5)]
    batch = bench.create(requests, metadata={"for": "me"})
    assert batch["status"] == "validating"
    assert batch["expires_at"] == batch["created_at"] + 86400
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}

    bench.turn()  # validates
    running = bench.get(batch)
    assert (running["status"], running["model"]) == ("in_progress", "tiny")
    assert running["in_progress_at"] >= running["created_at"]
    assert running["request_counts"]["total"] == 5
    assert running["progress"]["queue_position"] == 0
    bench.turn()  # feeds
    assert [message[1:] for message in bench.sent] == [("tiny", 9)] * 5
    assert bench.work() == 5

    done = bench.run_to_end(batch)
    assert done["status"] == "completed"
    assert done["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
    indexed = BatchResult.objects.filter(batch_id=batch["id"]).order_by("number")
    assert [(row.number, row.completed) for row in indexed] == [(n, True) for n in range(1, 6)]
    with File.objects.get(id=done["output_file_id"]).content.open("rb") as content:
        for row in indexed:
            content.seek(row.place)
            assert json.loads(content.read(row.size))["custom_id"] == f"r{row.number - 1}"
    assert done["created_at"] <= done["in_progress_at"] <= done["finalizing_at"]
    assert done["finalizing_at"] <= done["completed_at"]
    assert done["metadata"] == {"for": "me"}
    assert done["error_file_id"] is None
    assert done["usage"] == {
        "input_tokens": 15, "input_tokens_details": {"cached_tokens": 5},
        "output_tokens": 10, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 25,
    }  # fmt: skip
    lines = bench.lines(done["output_file_id"])
    assert [line["custom_id"] for line in lines] == [f"r{n}" for n in range(5)]  # in input order
    first = lines[0]
    assert set(first) == {"id", "custom_id", "response", "error", "meta"}
    assert (first["error"], first["meta"]["attempts"]) == (None, 1)
    assert first["meta"]["queue_seconds"] >= 0 <= first["meta"]["run_seconds"]
    assert first["response"]["status_code"] == 200
    body = first["response"]["body"]
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == "AB"
    assert body["usage"]["total_tokens"] == 3
    assert not BatchLine.objects.exists()
    assert UsageRecord.objects.filter(kind="batch").count() == 5
    file = bench.api.get(f"/v1/files/{done['output_file_id']}").json()
    assert file["purpose"] == "batch_output"
    assert file["filename"] == f"{batch['id']}_output.jsonl"


def test_a_line_that_failed_goes_to_the_error_file_as_a_live_request_would(bench):
    batch = bench.create([request("good"), request("bad")])
    bench.turn()
    bench.turn()
    (good, *_), (bad, *_) = bench.sent
    bench.worker.run(bad, "failed", "grammar_error")
    bench.worker.run(good)
    done = bench.run_to_end(batch)
    assert done["status"] == "completed"
    assert done["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    (line,) = bench.lines(done["error_file_id"])
    assert (line["custom_id"], line["error"]) == ("bad", None)
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"]["error"]["code"] == "grammar_error"
    assert [line["custom_id"] for line in bench.lines(done["output_file_id"])] == ["good"]


def test_a_line_says_how_often_a_worker_began_it(bench):
    batch = bench.create([request("a")])
    bench.turn()
    bench.turn()
    lost = bench.worker.claim(bench.sent[0][0])
    bench.worker.execution.release([(lost.job_id, lost.attempt)], lost=True)
    done = bench.run_to_end(batch)
    (line,) = bench.lines(done["output_file_id"])
    assert line["meta"]["attempts"] == 2


def test_when_every_line_fails_there_is_no_output_file(bench):
    done = bench.run_to_end(bench.create([request("a")]), state="failed", error="worker_error")
    assert (done["status"], done["output_file_id"]) == ("completed", None)
    assert len(bench.lines(done["error_file_id"])) == 1


def test_thoughts_are_counted(bench, monkeypatch):
    whole_response = storing.make_whole_response

    def thoughtful(job):
        status, body = whole_response(job)
        body["usage"]["reasoning_tokens"] = 1
        return status, body

    monkeypatch.setattr(storing, "make_whole_response", thoughtful)
    usage = bench.run_to_end(bench.create([request("a"), request("b")]))["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 2}
    assert usage["output_tokens"] == 4


def test_cancelling_keeps_the_lines_that_ended(bench):
    batch = bench.create([request(f"r{n}") for n in range(4)])
    bench.turn()
    bench.turn()
    bench.work(1)
    claim = bench.worker.claim(bench.sent[0][0])  # it runs
    cancelled = bench.post(f"/v1/batches/{batch['id']}/cancel").json()
    assert cancelled["status"] == "cancelling"
    assert cancelled["cancelling_at"]
    bench.turn()
    assert bench.get(batch)["status"] == "cancelling"  # one line still runs
    bench.worker.end(claim, "cancelled")
    done = bench.run_to_end(batch)
    assert done["status"] == "cancelled"
    assert done["cancelled_at"] >= done["cancelling_at"]
    assert done["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
    assert [line["custom_id"] for line in bench.lines(done["output_file_id"])] == ["r0"]
    errors = bench.lines(done["error_file_id"])
    assert [line["custom_id"] for line in errors] == ["r1", "r2", "r3"]
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert {line["response"] for line in errors} == {None}
    assert [line["meta"]["attempts"] for line in errors] == [1, 0, 0]
    again = bench.post(f"/v1/batches/{batch['id']}/cancel").json()
    assert again == done


def test_cancelling_before_validation_leaves_nothing(bench):
    batch = bench.create([request("a")])
    bench.post(f"/v1/batches/{batch['id']}/cancel")
    done = bench.run_to_end(batch)
    assert (done["status"], done["output_file_id"], done["error_file_id"]) == (
        "cancelled", None, None,
    )  # fmt: skip
    assert done["request_counts"] == {"total": 0, "completed": 0, "failed": 0}


def test_cancelling_ends_a_validation(bench, monkeypatch):
    """Other files wait for it."""
    batch = bench.create([request(f"r{n}", rid=f"rid-{n}") for n in range(5)])
    checked = []
    whole = validation.groups

    def cancelled_meanwhile(found):
        for group in whole(found):
            checked.append(group)
            yield group
            states.cancel(batch["id"], timezone.now())

    with monkeypatch.context() as patch:
        patch.setattr(input_lines, "MAX_GROUP_LINES", 1)
        patch.setattr(validation, "groups", cancelled_meanwhile)
        bench.turn()
    assert len(checked) == 2
    assert not BatchLine.objects.exists()
    assert bench.run_to_end(batch)["status"] == "cancelled"
    again = bench.create([request("r0", rid="rid-0")])  # what never ran has used no id
    assert bench.run_to_end(again)["status"] == "completed"


def test_lines_without_a_result_expire_with_the_window(bench):
    batch = bench.create([request(f"r{n}") for n in range(3)])
    bench.turn()
    bench.turn()
    bench.work(1)
    bench.turn()
    Batch.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    done = bench.run_to_end(batch)
    assert done["status"] == "expired"
    assert done["expired_at"]
    assert done["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    errors = bench.lines(done["error_file_id"])
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert len(bench.lines(done["output_file_id"])) == 1

    again = bench.post(f"/v1/batches/{batch['id']}/resubmit")
    assert again.status_code == 200
    assert again.json()["resubmission_of"] == batch["id"]
    redone = bench.run_to_end(again.json())
    assert redone["status"] == "completed"
    assert [line["custom_id"] for line in bench.lines(redone["output_file_id"])] == ["r1", "r2"]
    assert bench.post(f"/v1/batches/{redone['id']}/resubmit").json()["error"]["code"] == (
        "nothing_to_resubmit"
    )


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_a_batch_that_ended_during_its_validation_can_be_sent_again(bench, end):
    """It has no error file, since no line has a result."""
    batch = bench.create([request("a"), b"\n", request("b", max_tokens=0)])
    if end == "cancelled":
        bench.post(f"/v1/batches/{batch['id']}/cancel")
    else:
        Batch.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    refused = bench.post(f"/v1/batches/{batch['id']}/resubmit")
    assert refused.json()["error"]["code"] == "nothing_to_resubmit"  # it has not ended yet
    done = bench.run_to_end(batch)
    assert (done["status"], done["error_file_id"]) == (end, None)
    again = bench.post(f"/v1/batches/{batch['id']}/resubmit")
    assert again.status_code == 200, again.content
    assert again.json()["resubmission_of"] == batch["id"]
    redone = bench.run_to_end(again.json())
    assert redone["request_counts"] == {"total": 2, "completed": 1, "failed": 1}


def test_a_file_that_failed_is_not_sent_again(bench):
    failed = bench.run_to_end(bench.create([b'{"no": "request"}']))
    assert failed["status"] == "failed"
    refused = bench.post(f"/v1/batches/{failed['id']}/resubmit")
    assert refused.json()["error"]["code"] == "nothing_to_resubmit"


def test_a_resubmission_whose_answer_was_lost_is_made_once(bench):
    failed = bench.run_to_end(bench.create([request("a", max_tokens=0), request("b")]))
    other = bench.run_to_end(bench.create([request("c", max_tokens=0)]))
    files = File.objects.count()

    def again(batch, key):
        path = f"/v1/batches/{batch['id']}/resubmit"
        return bench.api.post(path, headers={"Idempotency-Key": key})

    first, repeated = (again(failed, "once") for _ in range(2))
    assert (first.status_code, repeated.status_code) == (200, 200)
    assert repeated.json() == first.json()
    assert "Idempotent-Replayed" not in first.headers
    assert repeated.headers["Idempotent-Replayed"] == "true"
    assert File.objects.count() == files + 1
    reused = again(other, "once")
    assert (reused.status_code, reused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert again(failed, "twice").json()["id"] != first.json()["id"]


def test_a_result_that_arrives_twice_counts_once(bench, monkeypatch):
    batch = bench.create([request("a"), request("b")])
    bench.turn()
    bench.turn()
    bench.work(1)
    with monkeypatch.context() as patch:
        patch.setattr("completions.maintenance.settlement.delete_entries", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tasks.settle()
    seen = bench.get(batch)
    assert seen["request_counts"]["completed"] == 1
    tasks.settle()
    assert bench.get(batch)["request_counts"] == seen["request_counts"]
    assert bench.get(batch)["usage"] == seen["usage"]
    assert UsageRecord.objects.count() == 1


def test_a_revoked_key_runs_nothing_more(bench, owner):
    batch = bench.create([request("a")])
    bench.turn()
    changes.revoke(owner.key, SERVICE)
    bench.turn()
    bench.turn()
    found = Batch.objects.get(id=batch["id"])
    assert (found.status, found.outcome) == ("cancelled", "cancelled")


def test_progress_has_position_and_speed(bench, monkeypatch):
    first = bench.create([request(f"a{n}") for n in range(10)])
    second = bench.create([request("b")])
    bench.turn()
    bench.turn()
    Batch.objects.filter(id=first["id"]).update(pace=[[timezone.now().timestamp() - 10, 0]])
    bench.work(5)
    bench.turn()
    seen = bench.get(first)["progress"]
    assert 0.4 < seen["lines_per_second"] <= 0.5
    assert 10 <= seen["seconds_left"] <= 12
    assert bench.get(second)["progress"]["queue_position"] == 1


def test_a_line_is_polled_like_any_completion_while_redis_has_it(bench):
    bench.create([request("a")])
    bench.turn()
    bench.turn()
    job_id = bench.sent[0][0]
    assert bench.client.exists(f"{PREFIX}job:{job_id}")
    bench.work()
    tasks.settle()
    assert 0 < bench.client.ttl(f"{PREFIX}job:{job_id}") <= 60
