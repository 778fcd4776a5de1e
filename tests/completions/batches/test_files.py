"""The files of a batch: read while they grow, written once, kept while they are used."""

import json

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.files.storage import FileSystemStorage
from django.test import Client

from completions.batches import files, writing
from completions.maintenance import tasks
from completions.models import BatchLine, File, LineState
from tests.completions.bench import request

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


def test_results_can_be_read_while_the_batch_runs(bench, stranger):
    batch = bench.create([request("a"), request("b")])
    bench.turn()
    bench.turn()
    assert bench.get(batch)["output_file_id"] is None
    bench.work(1)
    bench.turn()
    seen = bench.get(batch)
    assert seen["status"] == "in_progress"
    assert [line["custom_id"] for line in bench.lines(seen["output_file_id"])] == ["a"]
    other = Client(headers=stranger.headers)
    assert other.get(f"/v1/files/{seen['output_file_id']}/content").status_code == 404


def test_a_file_that_is_being_written_says_so(bench, stranger):
    """The official client waits for files until their status is `processed`."""
    batch = bench.create([request("a"), request("b")])
    bench.turn()
    bench.turn()
    bench.work(1)
    bench.turn()
    file_id = bench.get(batch)["output_file_id"]
    path = f"/v1/files/{file_id}"
    written = bench.api.get(path)
    assert written.status_code == 200
    body = written.json()
    assert (body["id"], body["object"], body["purpose"]) == (file_id, "file", "batch_output")
    assert (body["status"], body["bytes"]) == ("uploaded", 0)
    assert body["filename"] == f"{batch['id']}_output.jsonl"
    assert body["filename"] in bench.api.get(f"{path}/content").headers["Content-Disposition"]
    deleted = bench.api.delete(path)
    assert (deleted.status_code, deleted.json()["error"]["code"]) == (409, "file_in_use")
    other = Client(headers=stranger.headers)
    assert other.get(path).status_code == other.delete(path).status_code == 404
    assert bench.api.get(f"/v1/files/{file_id[:-1]}7").status_code == 404
    assert bench.api.get(f"/v1/files/{file_id[:-1]}7/content").status_code == 404
    bench.run_to_end(batch)
    ended = bench.api.get(path).json()
    assert (ended["status"], ended["filename"]) == ("processed", body["filename"])
    assert ended["bytes"] > 0


@pytest.mark.represented_by("complete-0", "cancel-2")
@pytest.mark.parametrize("pages_before", [0, 1, 2])
@pytest.mark.parametrize("way", ["complete", "cancel"])
def test_reading_goes_on_in_the_file_when_the_batch_ends_meanwhile(
    bench, monkeypatch, way, pages_before
):
    """Its lines go away under the reader, who would see the beginning and never know."""
    monkeypatch.setattr("completions.batches.lines.BATCH_SIZE", 2)
    batch = bench.create([request(f"r{n}") for n in range(7)])
    bench.turn()
    bench.turn()
    bench.work(5)
    bench.turn()
    seen = bench.get(batch)
    assert seen["request_counts"]["completed"] == 5
    stream = bench.api.get(f"/v1/files/{seen['output_file_id']}/content").streaming_content

    async def read():
        text = b"".join([await anext(stream) for _ in range(pages_before)])
        await sync_to_async(end)()
        return text + b"".join([part async for part in stream])

    def end():
        if way == "cancel":
            bench.post(f"/v1/batches/{batch['id']}/cancel")
        bench.run_to_end(batch)
        assert not BatchLine.objects.exists()

    read_ids = [json.loads(line)["custom_id"] for line in async_to_sync(read)().splitlines()]
    # What was done when it began, and what was done meanwhile.
    assert read_ids == [f"r{n}" for n in range(5 if way == "cancel" else 7)]


def test_the_turn_that_stores_the_last_result_also_writes_the_files(bench):
    batch = bench.create([request("a")])
    bench.turn()
    bench.turn()
    bench.work()
    bench.turn()
    assert bench.get(batch)["status"] == "completed"


def test_reading_fails_loudly_when_the_file_is_gone(bench, monkeypatch):
    batch = bench.create([request("a")])
    bench.turn()
    bench.turn()
    bench.work()
    tasks.settle()
    seen = bench.get(batch)
    stream = bench.api.get(f"/v1/files/{seen['output_file_id']}/content").streaming_content
    bench.run_to_end(batch)
    File.objects.filter(purpose="batch_output").delete()

    async def read():
        return [part async for part in stream]

    with pytest.raises(File.DoesNotExist):
        async_to_sync(read)()


def test_counts_are_those_of_the_files(bench, monkeypatch):
    """A line that nobody waited for any more, as SQL took it for lost, is answered while the files
    are being written."""
    batch = bench.create([request("a"), request("b")])
    bench.turn()
    bench.turn()
    bench.work(1)
    bench.turn()
    BatchLine.objects.filter(state=LineState.SENT).update(state=LineState.WAITING)
    bench.post(f"/v1/batches/{batch['id']}/cancel")
    store = writing.store

    def store_late(*args):
        bench.work()
        tasks.settle()
        store(*args)

    monkeypatch.setattr(writing, "store", store_late)
    done = bench.run_to_end(batch)
    assert done["status"] == "cancelled"
    assert done["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert [line["custom_id"] for line in bench.lines(done["output_file_id"])] == ["a"]
    assert [line["custom_id"] for line in bench.lines(done["error_file_id"])] == ["b"]


def test_files_are_written_once_whatever_interrupts(bench, folder, monkeypatch):
    def stored():  # the input and the output
        return len([path for path in folder.rglob("*") if path.is_file()])

    batch = bench.create([request("a")])
    bench.turn()
    bench.turn()
    bench.work()
    save = FileSystemStorage.save

    class Killed(BaseException):
        """The process ends after it wrote the content, and cleans nothing up."""

    def saved_before_the_end(*args, **options):
        save(*args, **options)
        raise Killed

    with monkeypatch.context() as patch:
        # The content is stored, and its row does not name it.
        patch.setattr(FileSystemStorage, "save", saved_before_the_end)
        patch.setattr(files, "_delete", lambda _files: 0)
        with pytest.raises(Killed):
            bench.turn()
    assert bench.get(batch)["status"] == "finalizing"
    assert File.objects.get(purpose="batch_output").content.name == ""
    assert stored() == 2
    with monkeypatch.context() as patch:
        # Now the row names it, and the batch has not ended.
        patch.setattr(writing, "Batch", None)
        bench.turn()
    assert bench.get(batch)["status"] == "finalizing"
    assert File.objects.filter(purpose="batch_output").count() == 1
    done = bench.run_to_end(batch)
    assert len(bench.lines(done["output_file_id"])) == 1
    assert stored() == 2


def test_lines_left_by_a_killed_writer_are_swept(bench, monkeypatch):
    batch = bench.create([request("a")])
    monkeypatch.setattr(writing, "delete_lines", lambda _batch: None)
    bench.run_to_end(batch)
    assert BatchLine.objects.count() == 1
    monkeypatch.undo()
    writing.delete_left_lines()
    assert BatchLine.objects.count() == 0


def test_an_input_file_in_use_cannot_be_deleted(bench):
    batch = bench.create([request("a")])
    refused = bench.api.delete(f"/v1/files/{batch['input_file_id']}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "file_in_use")
    assert refused.headers["x-should-retry"] == "false"
    bench.run_to_end(batch)
    assert bench.api.delete(f"/v1/files/{batch['input_file_id']}").json()["deleted"]


def test_the_list_of_files_goes_on_after_a_deleted_output(bench):
    """Its id carries no time of its own."""
    done = bench.run_to_end(bench.create([request("a"), request("b", max_tokens=0)]))
    listed = [file["id"] for file in bench.api.get("/v1/files").json()["data"]]
    assert listed == [done["error_file_id"], done["output_file_id"], done["input_file_id"]]
    for deleted, rest in ((listed[0], listed[1:]), (listed[1], listed[2:])):
        assert bench.api.delete(f"/v1/files/{deleted}").status_code == 200
        page = bench.api.get("/v1/files", {"after": deleted}).json()
        assert [file["id"] for file in page["data"]] == rest
