"""`manage.py submit`: a batch of the operator, waited for now or later; results beside its file."""

import io
import json
import time
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command

from completions.management.commands import submit
from completions.models import ApiKey, Batch
from tests.completions.batches.conftest import jsonl, request

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "night.jsonl"
    path.write_bytes(jsonl([request("a"), request("b")]))
    return path


@pytest.fixture
def run(bench, monkeypatch):
    """The command; while it sleeps, the service works."""

    def work(_seconds):
        bench.turn()
        bench.work()

    # The command's own: the feeder sleeps as well, on the same module.
    clock = SimpleNamespace(sleep=work, monotonic=time.monotonic)
    monkeypatch.setattr(submit, "time", clock)

    def call(*args):
        printed = io.StringIO()
        call_command("submit", *map(str, args), stdout=printed)
        return printed.getvalue()

    return call


def custom_ids(path):
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


def test_results_lie_next_to_the_file(run, file):
    printed = run(file, "--wait")
    assert "2/2" in printed
    assert "(completed)" in printed
    output = file.with_name("night.output.jsonl")
    assert custom_ids(output) == ["a", "b"]
    assert not file.with_name("night.errors.jsonl").exists()
    assert not list(file.parent.glob(".*.draft"))
    assert ApiKey.objects.filter(name=submit.KEY_NAME).count() == 1


def test_a_batch_is_submitted_once_and_waited_for_later(run, file, bench):
    printed = run(file)
    assert "submitted as batch_" in printed
    assert "already submitted" in run(file)
    assert Batch.objects.count() == 1
    for _ in range(6):
        bench.turn()
        bench.work()
    assert Batch.objects.get().status == "completed"  # while nobody looked
    assert "already submitted" in run(file, "--wait")
    assert file.with_name("night.output.jsonl").exists()
    assert "submitted as" in run(file)  # what was delivered can be run anew
    assert Batch.objects.count() == 2
    file.write_bytes(jsonl([request("c")]))
    assert "submitted as" in run(file)


def test_ctrl_c_leaves_the_batch_running(run, file, bench, monkeypatch):
    def interrupted(_seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(submit.time, "sleep", interrupted)
        with pytest.raises(CommandError, match="continues") as error:
            run(file, "--wait")
    assert error.value.returncode == 130
    assert "already submitted" in run(file, "--wait")
    assert custom_ids(file.with_name("night.output.jsonl")) == ["a", "b"]


def test_faults_are_told_with_their_lines(run, file):
    file.write_bytes(jsonl([request("a"), request("a"), request("c", max_tokens=0)]))
    with pytest.raises(CommandError) as error:
        run(file, "--wait")
    assert "line 2: duplicate_custom_id" in str(error.value)
    assert "line 3: integer_below_min_value" in str(error.value)


def test_a_batch_that_was_cancelled_is_no_success(run, file, bench):
    run(file)
    bench.turn()
    Batch.objects.update(status="cancelling", outcome="cancelled")
    with pytest.raises(CommandError, match="cancelled"):
        run(file, "--wait")
    assert custom_ids(file.with_name("night.errors.jsonl")) == ["a", "b"]


def test_files_that_cannot_be_sent(run, file, settings):
    with pytest.raises(CommandError, match="not a file"):
        run(file.with_name("other"))
    settings.MAX_FILE_BYTES = 10
    with pytest.raises(CommandError, match="larger than 10 bytes"):
        run(file)
