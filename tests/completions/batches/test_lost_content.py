"""The storage loses the content of a file, as when a backup of the database alone is restored."""

import pytest

from completions.batches.export.rows import ExportError, open_source
from completions.batches.receipts.source import SourceError, read_receipted
from completions.batches.results.search import Contents, Criteria, find_page
from completions.models import Batch, File
from tests.completions.bench import jsonl, request

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


def lose(folder, file_id):
    (path,) = folder.rglob(file_id)
    path.unlink()
    assert File.objects.filter(id=file_id).exists()


def refusal(response):
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


def test_a_batch_fails_before_it_begins(bench, folder):
    batch = bench.create([request("a")])
    lose(folder, batch["input_file_id"])
    bench.turn()
    seen = bench.get(batch)
    assert seen["status"] == "failed"
    (error,) = seen["errors"]["data"]
    assert (error["code"], error["line"]) == ("file_not_found", None)


def test_a_dry_run_says_so(bench, folder):
    file_id = bench.upload([request("a")])
    lose(folder, file_id)
    fields = {"endpoint": "/v1/completions", "dry_run": True}
    answer = bench.post("/v1/batches", {"input_file_id": file_id, **fields})
    assert answer.status_code == 200, answer.content
    assert not answer.json()["would_run"]
    assert answer.json()["errors"]["data"][0]["code"] == "file_not_found"


def test_a_running_batch_ends_with_its_results(bench, folder):
    batch = bench.create([request("a"), request("b", max_tokens=0)], receipts=True)
    bench.turn()
    lose(folder, batch["input_file_id"])
    done = bench.run_to_end(batch)
    assert done["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert refusal(bench.post(f"/v1/batches/{batch['id']}/resubmit")) == (
        404, "file_not_found", "id",
    )  # fmt: skip
    assert File.objects.filter(purpose="batch").count() == 1  # nothing is left of the attempt


def test_a_file_is_refused_before_its_first_byte(bench, folder):
    file_id = bench.upload([request("a")])
    lose(folder, file_id)
    answer = bench.api.get(f"/v1/files/{file_id}/content")
    assert refusal(answer) == (404, "file_not_found", "id")


def test_tools_of_the_operator_say_so(bench, folder, tmp_path):
    done = bench.run_to_end(bench.create([request("a")], receipts=True))
    output = tmp_path / "out.jsonl"
    output.write_bytes(jsonl(bench.lines(done["output_file_id"])))
    batch = Batch.objects.get(id=done["id"])
    lose(folder, batch.input_file_id)
    with pytest.raises(ExportError, match=batch.input_file_id):
        open_source(batch).columns()
    with pytest.raises(SourceError, match="--requests"):
        list(read_receipted(output, None))
    lose(folder, batch.output_file_id)
    with Contents(batch) as contents:
        found = find_page(Criteria(), contents, 0, 10, 1.0)
        ((row, text),) = found.lines
        assert (text, contents.read_request(row)) == (b"", b"")
