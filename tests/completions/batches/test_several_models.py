"""One file for several models: planned, forecast, fed and counted for each."""

import io
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone
from pytest_django.fixtures import Settings

from completions.batches import feeding
from completions.models import ApiKey, Batch, BatchLine, LineState, UsageRecord
from completions.usage import ledger
from tests.completions.bench import Bench, jsonl, request
from tests.completions.conftest import Tenant

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

TINY, SLASHED = "tiny", "org/slashed"


def lines(count: int, model: str, prefix: str = "", **body: Any) -> list[dict[str, Any]]:
    return [request(f"{prefix}{model}-{n}", model=model, **body) for n in range(count)]


def test_a_file_for_two_models_runs_to_its_end(bench: Bench) -> None:
    mixed = [each for pair in zip(lines(3, TINY), lines(3, SLASHED), strict=True) for each in pair]
    batch = bench.create(mixed, receipts=True)
    seen = bench.run_to_end(batch)
    assert (seen["model"], seen["models"]) == (None, [TINY, SLASHED])
    assert seen["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
    answered = bench.lines(seen["output_file_id"])
    assert [line["custom_id"] for line in answered] == [line["custom_id"] for line in mixed]
    for line, sent in zip(answered, mixed, strict=True):
        assert line["response"]["body"]["model"] == sent["body"]["model"]
        assert line["receipt"]["model"] == sent["body"]["model"]
    assert set(UsageRecord.objects.values_list("model", flat=True)) == {TINY, SLASHED}


def test_each_model_is_fed_whatever_the_other_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "LINES_PER_SEQUENCE", 0.25)  # a window of few lines
    bench.create([*lines(40, TINY), *lines(40, SLASHED)])
    bench.turn()
    bench.turn()
    sent = [model for _, model, _ in bench.sent]
    windows = {model: sent.count(model) for model in (TINY, SLASHED)}
    assert all(0 < window < 40 for window in windows.values())
    bench.sent[:] = [message for message in bench.sent if message[1] == SLASHED]
    while bench.sent:  # the worker of the other model does nothing
        bench.work()
        bench.turn()
    waiting = BatchLine.objects.filter(state=LineState.WAITING)
    assert not waiting.filter(model=SLASHED).exists()
    assert waiting.filter(model=TINY).count() == 40 - windows[TINY]
    assert BatchLine.objects.filter(state=LineState.SENT, model=TINY).count() == windows[TINY]


def test_a_batch_waits_behind_those_that_share_a_model(bench: Bench) -> None:
    made = [
        bench.create(lines(2, TINY, "a")),
        bench.create([*lines(2, TINY, "b"), *lines(2, SLASHED, "b")]),
        bench.create(lines(2, SLASHED, "c")),
    ]
    for _ in made:
        bench.turn()
    positions = [bench.get(batch)["progress"]["queue_position"] for batch in made]
    assert positions == [0, 1, 1]


def dry_run(bench: Bench, sent: Any, **options: Any) -> dict[str, Any]:
    body = {"input_file_id": bench.upload(sent), "endpoint": "/v1/completions", "dry_run": True}
    found: dict[str, Any] = bench.post("/v1/batches", {**body, **options}).json()
    return found


def test_a_forecast_has_the_figures_of_each_model(bench: Bench) -> None:
    short, long = lines(2, TINY, max_tokens=3), lines(3, SLASHED, prompt=[65] * 4, max_tokens=5)
    long.append(request("never", model=SLASHED, regex="perhaps", max_tokens=2))
    found = dry_run(bench, [*short, *long])
    one, other = found["models"]
    assert (one["model"], one["lines"], one["prompt_tokens"]) == (TINY, 2, 2)
    assert (other["model"], other["lines"], other["prompt_tokens"]) == (SLASHED, 4, 13)
    assert one["completion_tokens"] == {"least": 2, "most": 6, "expected": None}
    for name in ("lines", "prompt_tokens", "cached_prompt_tokens"):
        assert found[name] == one[name] + other[name]
    for bound in ("least", "most"):
        assert found["completion_tokens"][bound] == (
            one["completion_tokens"][bound] + other["completion_tokens"][bound]
        )
        assert found["cost"][bound] == pytest.approx(one["cost"][bound] + other["cost"][bound])
    assert found["cannot_finish"] == ["never"]
    assert found["seconds"] is None  # neither has run anything
    (alone,) = dry_run(bench, short)["models"]
    assert alone == one


def test_a_pilot_narrows_the_forecast_of_each_model(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_milliseconds", lambda seconds: 50)  # a fast worker takes 0 ms
    sent = [*lines(20, TINY, max_tokens=50), *lines(20, SLASHED, max_tokens=50)]
    batch = dry_run(bench, sent, pilot=20)
    for _ in range(4):
        bench.turn()
        bench.work()
    found = bench.get(batch)["forecast"]
    assert found["lines_run"] == 20
    for part in found["models"]:  # two tokens each, whatever the model
        assert part["completion_tokens"] == {"least": 40, "most": 40, "expected": 40}
    assert found["completion_tokens"] == {"least": 80, "most": 80, "expected": 80}
    every = [part["seconds"]["expected"] for part in found["models"]]
    assert found["seconds"]["expected"] == max(every)


def test_lines_of_an_earlier_version_get_the_model_of_their_batch(bench: Bench) -> None:
    batch = bench.create(lines(2, TINY))
    bench.turn()
    BatchLine.objects.update(model="")
    Batch.objects.update(by_model={})
    migration = import_module("completions.migrations.0011_lines_of_several_models")
    migration.name_models(apps, SimpleNamespace(connection=connection))
    assert set(BatchLine.objects.values_list("model", flat=True)) == {TINY}
    assert bench.run_to_end(batch)["request_counts"]["completed"] == 2


def test_a_line_for_a_model_that_its_key_may_not_use_is_refused_alone(
    bench: Bench, owner: Tenant
) -> None:
    ApiKey.objects.filter(pk=owner.key.pk).update(allowed_models=[TINY])
    sent = [*lines(2, TINY), *lines(1, SLASHED), *lines(1, "nowhere")]
    seen = bench.run_to_end(bench.create(sent))
    assert seen["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    assert (seen["model"], seen["models"]) == (TINY, [TINY])
    found = {line["custom_id"]: line["response"] for line in bench.lines(seen["error_file_id"])}
    forbidden, unknown = found[f"{SLASHED}-0"], found["nowhere-0"]
    assert (forbidden["status_code"], forbidden["body"]["error"]["code"]) == (
        403, "permission_denied",
    )  # fmt: skip
    assert (unknown["status_code"], unknown["body"]["error"]["code"]) == (404, "model_not_found")


def remove_model(
    bench: Bench, settings: Settings, monkeypatch: pytest.MonkeyPatch, count: int
) -> tuple[dict[str, Any], Path]:
    """Create a batch for two models, of which one is removed before any line is sent. Returns the
    batch, and the former models.toml: a process reads each once."""
    batch = bench.create([*lines(count, TINY), *lines(count, SLASHED)])
    with monkeypatch.context() as patch:
        patch.setattr(feeding, "feed", lambda *_: 0)
        bench.turn()
    assert bench.get(batch)["models"] == [TINY, SLASHED]
    whole: Path = settings.MODELS_FILE
    settings.MODELS_FILE = whole.with_name("fewer.toml")
    settings.MODELS_FILE.write_text(whole.read_text().split('[models."org/slashed"]')[0])
    return batch, whole


def test_lines_of_a_removed_model_wait_for_it_and_the_others_run(
    bench: Bench, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, whole = remove_model(bench, settings, monkeypatch, 3)
    for _ in range(4):
        bench.turn()
        bench.work()
    seen = bench.get(batch)
    assert seen["status"] == "in_progress"
    assert seen["request_counts"] == {"total": 6, "completed": 3, "failed": 0}
    settings.MODELS_FILE = whole
    assert bench.run_to_end(batch)["request_counts"]["completed"] == 6


def test_a_removed_model_ends_with_the_window(
    bench: Bench, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, whole = remove_model(bench, settings, monkeypatch, 2)
    for _ in range(3):
        bench.turn()
        bench.work()
    Batch.objects.update(expires_at=timezone.now())
    seen = bench.run_to_end(batch)
    assert (seen["status"], seen["request_counts"]["completed"]) == ("expired", 2)
    again = bench.post(f"/v1/batches/{batch['id']}/resubmit").json()
    refused = bench.run_to_end(again)
    assert refused["request_counts"] == {"total": 2, "completed": 0, "failed": 2}
    settings.MODELS_FILE = whole
    again = bench.post(f"/v1/batches/{again['id']}/resubmit").json()
    done = bench.run_to_end(again)
    assert (done["models"], done["request_counts"]["completed"]) == ([SLASHED], 2)


def test_a_cancelled_batch_ends_on_all_models_and_is_resubmitted_with_all(bench: Bench) -> None:
    batch = bench.create([*lines(4, TINY), *lines(4, SLASHED)])
    bench.turn()
    bench.turn()
    bench.sent.sort(key=lambda message: message[0].rpartition("-")[2])
    by_model = {
        model: [each for each in bench.sent if each[1] == model] for model in (TINY, SLASHED)
    }
    bench.sent[:] = [by_model[TINY][0], by_model[SLASHED][0]]
    bench.work()
    bench.turn()
    bench.post(f"/v1/batches/{batch['id']}/cancel")
    seen = bench.run_to_end(batch)
    assert (seen["status"], seen["request_counts"]) == (
        "cancelled", {"total": 8, "completed": 2, "failed": 6},
    )  # fmt: skip
    codes = {line["error"]["code"] for line in bench.lines(seen["error_file_id"])}
    assert codes == {"batch_cancelled"}
    again = bench.post(f"/v1/batches/{batch['id']}/resubmit").json()
    done = bench.run_to_end(again)
    assert (done["models"], done["request_counts"]["completed"]) == ([TINY, SLASHED], 6)


def test_receipts_of_several_models_hold(bench: Bench, tmp_path: Path) -> None:
    letters = {"prompt": (32,), "regex": "[A-Z]{2}"}
    sent = [*lines(2, TINY, **letters), *lines(2, SLASHED, **letters)]
    seen = bench.run_to_end(bench.create(sent, receipts=True), tokens=(32, 33))
    path = tmp_path / "out.jsonl"
    answered = bench.lines(seen["output_file_id"])
    path.write_bytes(jsonl(answered))
    printed = io.StringIO()
    call_command("verify", str(path), stdout=printed)
    assert printed.getvalue() == "4 lines hold\n"
    answered[3]["receipt"]["model"] = TINY
    path.write_bytes(jsonl(answered))
    printed = io.StringIO()
    with pytest.raises(CommandError):
        call_command("verify", str(path), stdout=printed)
    assert printed.getvalue().startswith(f"{SLASHED}-1: ")
