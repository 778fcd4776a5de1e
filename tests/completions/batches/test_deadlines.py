"""Windows of batches: what is forecast and promised, which lines go first, what is refused."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from completions.admin import batches as admin_batches
from completions.batches import feeding
from completions.batches.planning import outlook
from completions.maintenance import tasks
from completions.models import (
    Batch,
    BatchLine,
    BatchStatus,
    JobStatus,
    LineState,
    UsageRecord,
)
from tests.completions.batches.test_several_models import SLASHED
from tests.completions.bench import Bench, request

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

SPEED = 100


def run_requests(owner: Any, *, tokens_a_second: int = SPEED, model: str = "tiny") -> None:
    """Record that the model computed so many tokens a second."""
    now = timezone.now()
    UsageRecord.objects.bulk_create(
        UsageRecord(
            job_id=f"cmpl-{model}-{n}", organization=owner.organization, api_key=owner.key,
            model=model, kind="batch", status=JobStatus.COMPLETED, run_ms=1000, created_at=now,
            completion_tokens=tokens_a_second, finished_at=now + timedelta(seconds=n),
        )
        for n in range(10)
    )  # fmt: skip


def run_batch(owner: Any, *, bytes: int, most: int, tokens: int, took: float = 60) -> Batch:
    """Record a batch that was expected to take a minute."""
    began = timezone.now() - timedelta(hours=2)
    part = {"plan": {"prompt_tokens": 0}, "bytes": bytes, "most": most, "lines": 10}
    return Batch.objects.create(
        organization=owner.organization, api_key=owner.key, model="tiny", output_seconds=60,
        status=BatchStatus.COMPLETED, in_progress_at=began, expires_at=began + timedelta(hours=1),
        finalizing_at=began + timedelta(seconds=took), by_model={"tiny": part}, total=10,
        completed=10, completion_tokens=tokens, completion_window="1h",
        promise={"seconds": 60, "is_promised": True, "at": began.timestamp()},
    )  # fmt: skip


def lines(count: int, tokens: int, prefix: str = "r", **body: Any) -> list[dict[str, Any]]:
    return [request(f"{prefix}{n}", max_tokens=tokens, **body) for n in range(count)]


def sent_batches(bench: Bench) -> list[str]:
    prefixes = {batch.make_job_prefix(batch.id): batch.id for batch in Batch.objects.all()}
    return [prefixes[job_id.rpartition("-")[0] + "-"] for job_id, _, _ in bench.sent]


def test_nothing_is_forecast_of_a_model_that_has_run_nothing(bench: Bench) -> None:
    batch = bench.create(lines(2, 5), completion_window="30m")
    assert batch["deadline"] == {
        "ends_at": batch["expires_at"], "done_by": None, "probability": None, "admitted": None,
    }  # fmt: skip
    assert batch["expires_at"] == batch["created_at"] + 1800
    seen = bench.run_to_end(batch)
    assert seen["status"] == "completed"
    assert seen["deadline"]["done_by"] is None


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 5000, b"{", b"[]", b"\xff", b'{"body": 1}', b"1" * 5000,
        *(b'{"body": {"model": %b}}' % name for name in (b'"\\u0000"', b'"\\ud800"', b"[]", b"1")),
    ],
)  # fmt: skip
def test_a_line_that_names_no_model_is_left_to_the_validation(bench: Bench, line: bytes) -> None:
    batch = bench.create([line + b"\n"])
    bench.turn()
    [error] = bench.get(batch)["errors"]["data"]
    assert error["line"] == 1


def test_a_file_without_names_is_forecast_for_the_only_model(bench: Bench, owner: Any) -> None:
    owner.key.allowed_models = ["tiny"]
    owner.key.save()
    run_requests(owner)
    sent = lines(10, 50)
    for line in sent:
        del line["body"]["model"]
    run_batch(owner, bytes=10 * len(json.dumps(sent[0])), most=1000, tokens=500)
    assert bench.create(sent)["deadline"]["done_by"] is not None


def test_the_answer_says_when_the_batch_ends(bench: Bench, owner: Any) -> None:
    run_requests(owner)
    sent = lines(10, 50)  # 510 tokens: 5 s
    size = len(json.dumps(sent[0])) + 1
    for _ in range(5):
        run_batch(owner, bytes=10 * size, most=1000, tokens=500)
    batch = bench.create(sent, completion_window="30m")
    admitted = batch["deadline"]["admitted"]
    assert 5 < admitted["done_by"] - batch["created_at"] < 25
    assert admitted["probability"] > 0.99
    bench.turn()  # its tokens are known, half of which are usual
    stored = Batch.objects.get(id=batch["id"]).promise
    assert stored["seconds"] == pytest.approx((10 * 50 * 0.5 + 10) / SPEED)
    assert stored["is_promised"]
    seen = bench.get(batch)["deadline"]
    assert 0.99 < seen["probability"] == seen["admitted"]["probability"] < 1
    bench.turn()
    bench.work()
    done = bench.run_to_end(batch)["deadline"]
    assert (done["done_by"], done["probability"]) == (None, None)
    assert done["admitted"] == seen["admitted"]


def test_a_forecast_moves_with_the_batch(bench: Bench, owner: Any) -> None:
    run_requests(owner, tokens_a_second=1)
    batch = bench.create(lines(20, 50), completion_window="30m")
    bench.turn()
    before = bench.get(batch)["deadline"]
    assert before["probability"] < 0.95
    bench.turn()
    bench.work(10)  # of two tokens each, instead of 50
    tasks.settle()
    outlook.refresh(timezone.now())
    after = bench.get(batch)["deadline"]
    assert after["probability"] > before["probability"]
    assert after["done_by"] < before["done_by"]
    assert after["admitted"] == before["admitted"]


def test_earlier_forecasts_that_were_off_move_later_ones(bench: Bench, owner: Any) -> None:
    run_requests(owner)
    sent, found = lines(100, 50), []
    for took in (60, 600):
        Batch.objects.all().delete()
        for _ in range(30):
            run_batch(owner, bytes=100_000, most=1000, tokens=1000, took=took)
        batch = bench.create(sent, completion_window="1h")
        bench.turn()
        found.append(bench.get(batch)["deadline"]["admitted"]["done_by"] - batch["created_at"])
    assert found[1] > 5 * found[0]


def test_a_late_batch_is_refused_by_the_size_of_its_file(bench: Bench, owner: Any) -> None:
    run_requests(owner)
    for _ in range(5):
        run_batch(owner, bytes=1000, most=50_000, tokens=50_000)  # 50 tokens a byte
    body = {"endpoint": "/v1/completions", "requests": lines(40, 10), "completion_window": "5m"}
    answer = bench.post("/v1/batches", {**body, "on_late": "refuse"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("window_too_short", "completion_window")
    assert "done by" in error["message"]
    assert not Batch.objects.filter(status=BatchStatus.VALIDATING).exists()
    assert bench.api.get("/v1/files").json()["data"] == []
    batch = bench.post("/v1/batches", body).json()
    assert batch["deadline"]["probability"] < 0.9
    assert batch["on_late"] == "accept"
    assert bench.run_to_end(batch)["status"] == "completed"


def test_a_late_batch_is_refused_once_its_tokens_are_known(bench: Bench, owner: Any) -> None:
    run_requests(owner, tokens_a_second=1)
    batch = bench.create(lines(20, 50), completion_window="1m", on_late="refuse")
    assert (batch["status"], batch["deadline"]["admitted"]) == ("validating", None)
    bench.turn()
    seen = bench.get(batch)
    assert seen["status"] == "failed"
    (error,) = seen["errors"]["data"]
    assert (error["code"], error["param"], error["line"]) == (
        "window_too_short", "completion_window", None,
    )  # fmt: skip
    assert bench.lines(seen["error_file_id"])[0]["code"] == "window_too_short"
    assert not BatchLine.objects.exists()
    fits = bench.create(lines(20, 50), completion_window="2d", on_late="refuse")
    assert bench.run_to_end(fits)["status"] == "completed"


def test_a_dry_run_forecasts_the_end(bench: Bench, owner: Any) -> None:
    run_requests(owner)
    body = {"endpoint": "/v1/completions", "requests": lines(10, 99), "completion_window": "1h"}
    found = bench.post("/v1/batches", {**body, "dry_run": True}).json()["deadline"]
    assert 10 < found["done_by"] - (found["ends_at"] - 3600) < 40
    assert found["probability"] > 0.99


def test_the_shorter_window_goes_first_and_the_oldest_batch_goes_on(
    bench: Bench, owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "LINES_PER_SEQUENCE", 8 / 64)  # a window of 8
    run_requests(owner)
    oldest = bench.create(lines(30, 5, "a"), completion_window="24h")
    middle = bench.create(lines(30, 5, "b"), completion_window="12h")
    urgent = bench.create(lines(30, 5, "c"), completion_window="10m")
    for _ in range(4):
        bench.turn()
    bench.work()
    outlook.refresh(timezone.now())
    assert [bench.get(each)["progress"]["queue_position"] for each in (oldest, middle, urgent)] == [
        2, 1, 0,
    ]  # fmt: skip
    bench.turn()
    sent = sent_batches(bench)
    assert len(sent) == 8
    assert sent.count(oldest["id"]) == 2
    assert sent.count(urgent["id"]) == 6
    ended = []
    while len(ended) < 3:
        bench.turn()
        bench.work()
        done = Batch.objects.filter(status=BatchStatus.COMPLETED).values_list("id", flat=True)
        ended += [id for id in done if id not in ended]
    assert ended[0] == urgent["id"]


def test_a_late_batch_does_not_delay_others(
    bench: Bench, owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_requests(owner, tokens_a_second=1)
    late = bench.create(lines(30, 60, "a"), completion_window="10m")
    fits = bench.create(lines(30, 1, "b"), completion_window="30m")
    with monkeypatch.context() as patch:
        patch.setattr(feeding, "feed", lambda *_: 0)
        bench.turn()
    monkeypatch.setattr(feeding, "LINES_PER_SEQUENCE", 8 / 64)
    outlook.refresh(timezone.now())
    feeding.feed(tasks._shards(), tasks.dispatch)
    sent = sent_batches(bench)
    assert sent.count(fits["id"]) == 6
    assert sent.count(late["id"]) == 2  # the oldest


def test_a_batch_for_two_models_ends_with_the_slower_one(bench: Bench, owner: Any) -> None:
    run_requests(owner)
    run_requests(owner, tokens_a_second=1, model=SLASHED)
    sent = [*lines(5, 20, "a"), *lines(5, 20, "b", model=SLASHED)]
    batch = bench.create(sent, completion_window="1h")
    bench.turn()
    deadline = bench.get(batch)["deadline"]
    assert deadline["done_by"] - batch["created_at"] > 100
    outlook.refresh(timezone.now())
    turns = Batch.objects.get(id=batch["id"]).outlook["turns"]
    assert turns == {"tiny": 0, SLASHED: 0}


def test_what_has_ended_in_the_window_is_kept(bench: Bench) -> None:
    batch = bench.create(lines(6, 5), completion_window="1m")
    bench.turn()
    bench.turn()
    bench.work(4)
    bench.turn()
    Batch.objects.update(expires_at=timezone.now())
    for _ in range(4):
        bench.turn()
        bench.work()
    seen = bench.get(batch)
    assert seen["status"] == "expired"
    assert seen["request_counts"] == {"total": 6, "completed": 4, "failed": 2}
    assert len(bench.lines(seen["output_file_id"])) == 4
    codes = {line["error"]["code"] for line in bench.lines(seen["error_file_id"])}
    assert codes == {"batch_expired"}
    again = bench.post(f"/v1/batches/{batch['id']}/resubmit").json()
    assert again["completion_window"] == "1m"
    assert BatchLine.objects.filter(state=LineState.SENT).count() == 0


def test_the_time_that_a_batch_is_held_is_no_error_of_its_forecast(
    bench: Bench, owner: Any
) -> None:
    run_requests(owner)
    held = bench.create(lines(10, 50), completion_window="2d", dry_run=True, pilot=2)
    bench.turn()
    Batch.objects.filter(id=held["id"]).update(
        promise={"seconds": 1, "is_promised": True, "at": timezone.now().timestamp() - 86_400}
    )
    queue = outlook.ModelQueue("tiny", list(Batch.objects.all()), timezone.now())
    before = queue.track.promised.find_seconds(60)
    assert before == outlook.Errors().find_seconds(60)
    started = bench.post(f"/v1/batches/{held['id']}/start").json()
    assert started["held"] is False
    promise = Batch.objects.get(id=held["id"]).promise
    assert promise["at"] == pytest.approx(timezone.now().timestamp(), abs=60)
    assert started["deadline"]["admitted"]["done_by"] > started["created_at"]


def test_a_batch_that_was_held_takes_no_promise_away(bench: Bench, owner: Any) -> None:
    run_requests(owner, tokens_a_second=1)
    fields = {"completion_window": "1h"}
    held = bench.create(lines(30, 50, "a"), **fields, dry_run=True, pilot=1)
    bench.turn()
    other = bench.create(lines(30, 50, "b"), **fields)
    bench.turn()
    assert Batch.objects.get(id=other["id"]).promise["is_promised"]
    bench.post(f"/v1/batches/{held['id']}/start")
    assert not Batch.objects.get(id=held["id"]).promise["is_promised"]


def test_a_refusal_names_no_more_than_the_forecast_has() -> None:
    forecast = outlook.Forecast(False, 1e12, 1e15, 0.8999)
    message = outlook.explain_late(forecast, timezone.now())
    assert "in the window, 89 %." in message
    assert "done by 9999-12-31" in message


def test_the_admin_shows_no_probability_of_1_and_no_time_beyond_the_calendar() -> None:
    deadline = {"done_by": 10**15, "probability": 0.999, "admitted": None}
    [(name, text, _)] = admin_batches._list_forecasts(deadline)
    assert (name, text) == ("Forecast", "99 % in the window; with 90 % by 9999-12-31 23:59:59")
