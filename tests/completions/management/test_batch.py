"""`manage.py batch VERB`: list, watch, start, cancel, fetch and resubmit."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django.fixtures import Settings

from completions.management.commands import submit
from completions.models import Batch, BatchStatus, File
from tests.completions.bench import request
from tests.completions.conftest import Tenant
from tests.completions.console.batch_of_results import ended_batch

pytestmark = [
    pytest.mark.integration,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("folder"),
]


def run(*words: object) -> str:
    printed = io.StringIO()
    call_command("batch", *map(str, words), stdout=printed)
    return printed.getvalue()


def test_list(bench: Any, owner: Tenant, stranger: Tenant) -> None:
    older = bench.create([request("a")], metadata={"name": "night"})["id"]
    newer = bench.create([request("b")])["id"]
    assert run("list") == f"{newer}  validating   0/0\n{older}  validating   0/0  night\n"
    assert run("list", "--limit", "1").split()[0] == newer
    assert run("list", "--organization", stranger.organization.name) == ""
    assert len(run("list", "--organization", owner.organization.name).splitlines()) == 2


def test_a_pilot_is_started_watched_and_fetched(
    bench: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def work(_seconds: float) -> None:
        bench.turn()
        bench.work()

    monkeypatch.setattr(submit, "time", SimpleNamespace(sleep=work, monotonic=lambda: 0.0))
    batch = bench.create([request("a"), request("b")], dry_run=True, pilot=1)["id"]
    with pytest.raises(CommandError, match="is validating; fetch it once it has ended"):
        run("fetch", batch)
    bench.turn()
    assert "continues" in run("start", batch)
    with pytest.raises(CommandError, match="is not held"):
        run("start", batch)
    assert "2/2 (completed)" in run("watch", batch)
    path = tmp_path / "x.output.jsonl"
    assert run("fetch", batch, "--to", tmp_path / "x") == f"output: {path}\n"
    assert [json.loads(line)["custom_id"] for line in path.read_text().splitlines()] == ["a", "b"]


def test_cancel(bench: Any) -> None:
    batch = bench.create([request("a")])["id"]
    assert run("cancel", batch) == "cancelling\n"
    bench.turn()
    with pytest.raises(CommandError, match="is cancelled"):
        run("watch", batch)


def test_resubmit(api: Any, owner: Tenant, settings: Settings) -> None:
    batch = ended_batch(owner.key, 30)
    again = Batch.objects.get(pk=run("resubmit", batch.pk).strip())
    assert again.resubmission_of == batch.pk
    with File.objects.get(pk=again.input_file_id).content.open("rb") as content:
        sent = [json.loads(line)["custom_id"] for line in content]
    assert sent == ["line-10", "line-20", "line-30"]
    settings.MAX_QUEUED_LINES = 0
    with pytest.raises(CommandError, match="lines of your organization wait"):
        run("resubmit", batch.pk)
    Batch.objects.filter(pk=batch.pk).update(status=BatchStatus.COMPLETED, failed=0)
    with pytest.raises(CommandError, match="has no failed lines"):
        run("resubmit", batch.pk)
    Batch.objects.filter(pk=batch.pk).update(failed=1)
    File.objects.all().delete()
    with pytest.raises(CommandError, match="were deleted or have expired"):
        run("resubmit", batch.pk)


def test_an_unknown_batch(db: None) -> None:
    with pytest.raises(CommandError, match="there is no batch batch_0"):
        run("watch", "batch_0")
