"""What a dry run says, what a pilot adds, and that neither runs more than it should."""

from datetime import timedelta

import pytest
from django.utils import timezone

from completions.batches import feeding
from completions.batches.planning import cache
from completions.batches.planning.cache import CacheSize
from completions.maintenance import tasks
from completions.models import (
    ApiKey,
    Batch,
    BatchLine,
    BatchStatus,
    File,
    JobStatus,
    UsageRecord,
)
from tests.completions.bench import request

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


def dry_run(bench, requests, **options):
    body = {"input_file_id": bench.upload(requests), "endpoint": "/v1/completions", **options}
    answer = bench.post("/v1/batches", {**body, "dry_run": True})
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_a_dry_run_says_what_the_file_takes_and_runs_nothing(bench):
    lines = [request(f"r{n}", [65] * 10, max_tokens=4 + n) for n in range(3)]
    lines.append(request("choice", regex="(yes|no)", max_tokens=2))
    lines.append(request("long", regex="perhaps", max_tokens=6))
    lines.append(request("bad", max_tokens=0))
    found = dry_run(bench, lines)
    assert found["object"] == "batch.forecast"
    assert (found["lines"], found["invalid_lines"], found["would_run"]) == (6, 1, True)
    assert found["prompt_tokens"] == 32
    assert found["cannot_finish"] == ["long"]
    assert found["lines_that_cannot_finish"] == 1
    # One token at least of what is free, "no", and all that "long" may have; 15 at most, 2 and 6.
    assert found["completion_tokens"] == {"least": 3 + 2 + 6, "most": 15 + 2 + 6, "expected": None}
    assert found["cost"]["least"] == pytest.approx((32 * 0.5 + 11 * 2) / 1e6)
    assert found["cost"]["most"] == pytest.approx((32 * 0.5 + 23 * 2) / 1e6)
    assert found["cost"]["within_budgets"]
    assert found["seconds"] is None  # no batch has run
    (error,) = found["errors"]["data"]
    assert (error["line"], error["code"]) == (6, "integer_below_min_value")
    bench.turn()
    assert not bench.sent
    assert not Batch.objects.exists()
    assert not BatchLine.objects.exists()


def test_a_dry_run_reserves_no_ids(bench):
    lines = [request("a", rid="mine")]
    assert dry_run(bench, lines)["invalid_lines"] == 0
    assert bench.run_to_end(bench.create(lines))["request_counts"]["completed"] == 1


def test_a_file_without_sense_would_not_run(bench):
    found = dry_run(bench, [request("a"), request("a")])
    assert (found["lines"], found["invalid_lines"], found["would_run"]) == (2, 1, False)
    assert found["completion_tokens"] is None
    (error,) = found["errors"]["data"]
    assert (error["line"], error["code"]) == (2, "duplicate_custom_id")
    assert not dry_run(bench, [request("a", max_tokens=0)], on_invalid="fail")["would_run"]


def test_tokens_that_prefixes_share(bench, monkeypatch):
    size = CacheSize(blocks=100, slots=2)
    monkeypatch.setattr("completions.endpoints.batches.read_cache_size", lambda _model: size)
    found = dry_run(bench, [request(f"r{n}", [65] * 33 + [n]) for n in range(5)])
    assert found["cached_prompt_tokens"] == 4 * 32


def test_budgets_are_compared(bench, owner):
    lines = [request(f"r{n}", max_tokens=10) for n in range(5)]
    ApiKey.objects.update(daily_token_budget=54)
    found = dry_run(bench, lines)["cost"]
    assert (found["tokens_left"], found["within_budgets"]) == (54, False)
    ApiKey.objects.update(daily_token_budget=55)
    assert dry_run(bench, lines)["cost"]["within_budgets"]


def test_time_is_that_of_the_latest_batches(bench, owner):
    began = timezone.now()
    for seconds in (9, 10, 10, 11, 10, 10):
        Batch.objects.create(
            organization=owner.organization, api_key=owner.key, model="tiny",
            status=BatchStatus.COMPLETED, in_progress_at=began, output_seconds=60,
            finalizing_at=began + timedelta(seconds=seconds), expires_at=began,
            prompt_tokens=500, completion_tokens=500,
        )  # fmt: skip
    seconds = dry_run(bench, [request("a", [65] * 100, max_tokens=20)])["seconds"]
    assert seconds["least"] < 101 / 100 < 120 / 100 < seconds["most"] < 2
    assert seconds["expected"] is None  # nobody knows how long the answers are


def record(owner, number, began, seconds, *, tokens=100, kind="sync"):
    ended = began + timedelta(seconds=seconds)
    UsageRecord.objects.create(
        job_id=f"cmpl-{kind}-{number}", organization=owner.organization, api_key=owner.key,
        model="tiny", kind=kind, status=JobStatus.COMPLETED, prompt_tokens=50, cached_tokens=50,
        completion_tokens=tokens, run_ms=seconds * 1000, created_at=began, finished_at=ended,
    )  # fmt: skip


def test_time_is_that_of_requests_where_no_batch_has_ended(bench, owner):
    lines = [request("a", [65] * 100, max_tokens=20)]
    now = timezone.now()
    record(owner, 0, now, 1)
    assert dry_run(bench, lines)["seconds"] == {"least": 1.0, "most": 1.2, "expected": None}
    UsageRecord.objects.all().delete()
    for number in range(40):  # two at a time, and pauses between them: 200 tokens a second
        record(owner, number, now + timedelta(seconds=10 * (number // 2)), 1)
    assert dry_run(bench, lines)["seconds"] == {"least": 0.5, "most": 0.6, "expected": None}
    for number in range(5):  # of lines alone, where there are some: 20 tokens a second
        record(owner, number, now + timedelta(seconds=number), 1, tokens=20, kind="batch")
    assert dry_run(bench, lines)["seconds"] == {"least": 5.1, "most": 6.0, "expected": None}


def test_a_pilot_narrows_the_forecast_and_its_results_stay(bench):
    lines = [request(f"r{n}", max_tokens=50) for n in range(40)]
    batch = dry_run(bench, lines, pilot=10)
    assert batch["object"] == "batch"
    for _ in range(3):
        bench.turn()
        bench.work()
    seen = bench.get(batch)
    assert (seen["status"], seen["held"]) == ("in_progress", True)
    assert seen["request_counts"]["completed"] == 10
    found = seen["forecast"]
    assert found["lines_run"] == 10
    assert found["completion_tokens"] == {"least": 80, "most": 80, "expected": 80}
    # One line a second, of 2 tokens: the fake worker counts none of the prompt, the plan one.
    Batch.objects.update(pace=[[100.0, 0], [110.0, 10]])
    assert bench.get(batch)["forecast"]["seconds"] == {
        "least": 60, "most": 60, "expected": 60,
    }  # fmt: skip
    bench.turn()
    assert not bench.sent  # it waits
    assert Batch.objects.get().pace == [[100.0, 0], [110.0, 10]]  # and stays measured
    started = bench.post(f"/v1/batches/{batch['id']}/start").json()
    assert not started["held"]
    assert Batch.objects.get().pace == []
    done = bench.run_to_end(batch)
    assert done["request_counts"]["completed"] == 40
    ids = [line["custom_id"] for line in bench.lines(done["output_file_id"])]
    assert ids == [f"r{n}" for n in range(40)]


def test_a_pilot_may_be_stopped_and_keeps_its_results(bench):
    batch = dry_run(bench, [request(f"r{n}") for n in range(9)], pilot=20)
    assert bench.get(batch)["pilot"] == 20
    bench.turn()
    assert bench.get(batch)["pilot"] == 9
    other = dry_run(bench, [request(f"r{n}") for n in range(9)], pilot=2)
    for _ in range(3):
        bench.turn()
        bench.work()
    bench.post(f"/v1/batches/{other['id']}/cancel")
    done = bench.run_to_end(other)
    assert done["status"] == "cancelled"
    assert done["request_counts"] == {"total": 9, "completed": 2, "failed": 7}


@pytest.mark.parametrize("pilot", [1, 2, 3])
def test_every_line_of_a_pilot_runs(bench, pilot):
    """Also if the lines that were drawn are the first ones of the file, in its order."""
    lines = [request("bad", temperature=9), *(request(f"r{n}") for n in range(pilot))]
    dry_run(bench, lines, pilot=pilot)
    ran = 0
    for _ in range(3):
        bench.turn()
        ran += bench.work()
    assert ran == pilot


def test_a_batch_that_waits_for_its_owner_is_fed_once_a_run(bench, monkeypatch):
    feed, fed = feeding.feed, []
    monkeypatch.setattr(feeding, "feed", lambda *given: fed.append(given) or feed(*given))
    monkeypatch.setattr(tasks, "FEED_SECONDS", 30)
    batch = dry_run(bench, [request(f"r{n}") for n in range(9)], pilot=2)
    monkeypatch.setattr(tasks.time, "sleep", lambda _seconds: bench.work())
    bench.turn()  # until the pilot has ended
    assert bench.get(batch)["request_counts"]["completed"] == 2
    fed.clear()
    bench.turn()
    assert len(fed) == 1
    assert bench.post(f"/v1/batches/{batch['id']}/start").status_code == 200
    bench.turn()
    assert bench.get(batch)["request_counts"]["completed"] == 9


def test_without_redis_the_size_of_caches_is_unknown(settings):
    settings.REDIS_URL = "redis://localhost:1/0"
    assert cache.read_cache_size("tiny") is None


def test_no_file_is_left_by_a_rehearsal_of_the_command(bench, tmp_path, capsys):
    from django.core.management import call_command

    from tests.completions.bench import jsonl

    path = tmp_path / "night.jsonl"
    path.write_bytes(jsonl([request("a")]))
    call_command("submit", str(path), "--dry-run")
    assert '"object": "batch.forecast"' in capsys.readouterr().out
    assert not File.objects.exists()
    assert not Batch.objects.exists()
