"""One file for several models: planned, forecast, fed and counted for each."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from completions.batches import feeding
from completions.models import Batch, BatchLine, LineState, UsageRecord
from completions.usage import ledger
from tests.completions.batches.conftest import Bench, request

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
