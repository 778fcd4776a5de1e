"""`manage.py submit`: a batch of the operator, waited for now or later; results beside its file."""

import io
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from pyarrow import parquet

from completions.batches.export.row_file import RowFile
from completions.batches.export.rows import ExportError
from completions.management.commands import submit
from completions.models import ApiKey, Batch, File
from tests.completions.bench import jsonl, request

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
        printed = io.BytesIO()  # a terminal refuses what is not UTF-8
        stdout = io.TextIOWrapper(printed, encoding="utf-8", write_through=True)
        call_command("submit", *map(str, args), stdout=stdout)
        return printed.getvalue().decode()

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


@pytest.mark.parametrize("blank", ["", "\n \n"])
def test_the_first_line_names_the_endpoint(run, file, blank):
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": chat}
    file.write_text(f"{blank}{json.dumps(line)}\n")
    run(file)
    assert Batch.objects.get().endpoint == "/v1/chat/completions"


@pytest.mark.parametrize("content", ["", "no json", "[]", '{"url": "/v1/x"}', '{"url": ["a"]}'])
def test_a_first_line_without_an_endpoint_is_left_to_validation(run, file, content):
    file.write_text(content)
    run(file)
    assert Batch.objects.get().endpoint == "/v1/completions"


def test_a_window_may_have_its_unit(run, file):
    run(file, "--window", "30h")
    assert Batch.objects.get().completion_window == "30h"
    for window in ("0h", "169", "8d", "²"):
        with pytest.raises(CommandError, match='from "1m" to "7d"'):
            run(file, "--window", window)


def test_answers_are_closed_if_the_operator_asks_for_it(run, file):
    run(file, "--close")
    assert Batch.objects.get().close is True
    file.write_bytes(jsonl([request("c")]))
    run(file)
    assert Batch.objects.latest("created_at").close is False


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


def test_a_name_that_is_not_utf8_is_accepted(run, tmp_path, bench):
    """Archives of other systems contain such names."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/n\xffght.jsonl"))
    path.write_bytes(jsonl([request("a")]))
    assert "submit --wait" in run(path)
    assert "n?ght.jsonl was already submitted" in run(path, "--wait")
    assert custom_ids(path.with_name(f"{path.stem}.output.jsonl")) == ["a"]
    assert File.objects.get(purpose="batch").filename == "n?ght.jsonl"
    assert Batch.objects.get().metadata["submitted_from"].endswith("/n?ght.jsonl")


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


def test_faults_are_reported_with_their_lines(run, file):
    file.write_bytes(jsonl([request("a"), request("a"), request("c", max_tokens=0)]))
    with pytest.raises(CommandError) as error:
        run(file, "--wait", "--on-invalid", "fail")
    assert "line 2: duplicate_custom_id" in str(error.value)
    assert "line 3: integer_below_min_value" in str(error.value)


def test_a_refused_line_is_in_the_error_file(run, file):
    file.write_bytes(jsonl([request("a"), request("b", max_tokens=0)]))
    printed = run(file, "--wait")
    assert "2/2, 1 failed" in printed
    assert custom_ids(file.with_name("night.output.jsonl")) == ["a"]
    assert custom_ids(file.with_name("night.errors.jsonl")) == ["b"]


def test_a_pilot_is_waited_for_and_the_rest_runs_later(run, file):
    file.write_bytes(jsonl([request(f"r{n}") for n in range(12)]))
    printed = run(file, "--dry-run", "--pilot", 6)
    forecast = json.loads(printed)
    assert (forecast["lines_run"], forecast["completion_tokens"]["expected"]) == (6, 24)
    batch = Batch.objects.get()
    assert (batch.held, batch.completed) == (True, 6)
    assert "continues after its pilot" in run(file, "--wait")
    assert len(custom_ids(file.with_name("night.output.jsonl"))) == 12


def test_a_pilot_of_refused_lines_says_so(run, file):
    file.write_bytes(jsonl([request("a", max_tokens=0)]))
    with pytest.raises(CommandError, match="every line was refused"):
        run(file, "--dry-run", "--pilot", 6)


def test_a_cancelled_batch_fails_the_command(run, file, bench):
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


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_results_are_exported(run, file):
    file.write_bytes(
        jsonl([request("a", json_schema=SCHEMA), request("b", json_schema=SCHEMA, max_tokens=0)])
    )
    target = file.with_name("results.parquet")
    printed = run(file, "--to", target)  # which waits
    assert f"2 rows in {target}, 1 with an error" in printed
    rows = parquet.read_table(target).to_pylist()
    assert [(row["custom_id"], row["error_code"]) for row in rows] == [
        ("a", None), ("b", "integer_below_min_value"),
    ]  # fmt: skip
    assert [row["a"] for row in rows] == [None, None]  # the fake worker writes no JSON
    batch = Batch.objects.get()
    printed = io.StringIO()
    again = file.with_name("again.parquet")
    call_command("export", batch.id, "--to", str(again), stdout=printed)
    assert parquet.read_table(again) == parquet.read_table(target)
    File.objects.filter(id=batch.input_file_id).delete()
    with pytest.raises(CommandError, match="a copy of it with --requests"):
        call_command("export", batch.id, "--to", str(again))
    call_command("export", batch.id, "--to", str(again), "--requests", str(file), stdout=printed)
    File.objects.all().delete()
    with pytest.raises(CommandError, match="were deleted or have expired"):
        call_command("export", batch.id, "--to", str(again), "--requests", str(file))


def test_a_target_that_cannot_be_written_is_refused_before_the_batch_runs(run, file):
    for target, message in (
        ("x.xlsx", "neither FILE.jsonl, FILE.csv, FILE.parquet nor"),
        (file.parent / "no" / "x.parquet", "not a folder"),
        ("postgresql://127.0.0.1:1/db/t", "PostgreSQL"),
    ):  # fmt: skip
        with pytest.raises(CommandError, match=message):
            run(file, "--to", target)
    assert not Batch.objects.exists()


def test_an_export_that_fails_is_continued_by_the_same_command(run, file, monkeypatch):
    target = file.with_name("results.parquet")

    def fail(*_args):
        raise ExportError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "write", fail)
        with pytest.raises(CommandError, match="the disk is full\nrun the same command again"):
            run(file, "--to", target)
    assert "already submitted" in run(file, "--to", target)
    assert parquet.read_table(target).num_rows == 2
    assert Batch.objects.count() == 1


def test_what_cannot_be_exported(run, file, bench):
    with pytest.raises(CommandError, match="there is no batch batch_0"):
        call_command("export", "batch_0", "--to", "x.parquet")
    run(file)
    batch = Batch.objects.get()
    with pytest.raises(CommandError, match="is validating; export it once it has ended"):
        call_command("export", batch.id, "--to", "x.parquet")
    Batch.objects.update(status="failed")
    with pytest.raises(CommandError, match="failed before any line ran"):
        call_command("export", batch.id, "--to", "x.parquet")
