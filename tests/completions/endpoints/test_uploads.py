"""/v1/uploads: a file in parts, and the rest of a file that was read in part."""

import asyncio
import hashlib
import time
from datetime import timedelta

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.files.storage import FileSystemStorage
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connections
from django.test import AsyncClient
from django.utils import timezone

from completions.batches import uploads
from completions.delivery import rate_limits
from completions.exceptions import APIError
from completions.models import File, Upload, UploadPart
from tests.completions.endpoints.test_files import code, content_of, upload

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("folder")]

CONTENT = b'{"custom_id": "a"}\n{"custom_id": "b"}\n'


SIZE = len(CONTENT)


def begin(api, size=SIZE, **fields):
    body = {
        "filename": "in.jsonl",
        "purpose": "batch",
        "bytes": size,
        "mime_type": "text/jsonl",
        **fields,
    }
    return api.post("/v1/uploads", body, content_type="application/json")


def add(api, upload_id, content):
    parts = {"data": SimpleUploadedFile("part", content)}
    return api.post(f"/v1/uploads/{upload_id}/parts", parts)


def complete(api, upload_id, *part_ids, **fields):
    body = {"part_ids": part_ids, **fields}
    return api.post(f"/v1/uploads/{upload_id}/complete", body, content_type="application/json")


def test_parts_become_a_file_in_the_order_of_the_last_call(api, folder):
    begun = begin(api).json()
    assert (begun["object"], begun["status"], begun["file"]) == ("upload", "pending", None)
    assert begun["expires_at"] == begun["created_at"] + 86400
    second, first = (add(api, begun["id"], piece).json() for piece in (CONTENT[9:], CONTENT[:9]))
    assert (first["object"], first["upload_id"]) == ("upload.part", begun["id"])
    md5 = hashlib.md5(CONTENT).hexdigest()  # noqa: S324 - of the API, no secret
    done = complete(api, begun["id"], first["id"], second["id"], md5=md5).json()
    assert done["status"] == "completed"
    file = done["file"]
    assert (file["bytes"], file["filename"], file["purpose"]) == (
        len(CONTENT),
        "in.jsonl",
        "batch",
    )
    assert content_of(api.get(f"/v1/files/{file['id']}/content")) == CONTENT
    assert [path.name for path in folder.rglob("*") if path.is_file()] == [file["id"]]
    # Repeated, it returns the same file; nothing more can be added.
    assert complete(api, begun["id"], first["id"], second["id"]).json() == done
    assert code(add(api, begun["id"], b"x"), 409) == ("upload_not_pending", "id")


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("n\N{RIGHT-TO-LEFT OVERRIDE}lnosj.exe", "nlnosj.exe"),
        ("a\u2028b\x85c\u200fd\r\n", "abcd"),
        ("\u2066\u2069\x00", "file"),
        ("नमस्ते\N{ZERO WIDTH NON-JOINER}.jsonl", "नमस्ते\N{ZERO WIDTH NON-JOINER}.jsonl"),
    ],
    ids=ascii,
)
def test_a_name_is_kept_without_what_makes_it_look_like_another(api, folder, name, kept):
    begun = begin(api, filename=name).json()
    part = add(api, begun["id"], CONTENT).json()
    file = complete(api, begun["id"], part["id"]).json()["file"]
    assert begun["filename"] == file["filename"] == kept


def test_a_call_that_comes_second_makes_no_second_file(api, folder, monkeypatch):
    """Both found the upload pending."""
    begun = begin(api).json()
    part = add(api, begun["id"], CONTENT).json()
    late = Upload.objects.get(id=begun["id"])
    uploads.complete(Upload.objects.get(id=begun["id"]), [part["id"]], None)
    first = Upload.objects.get(id=begun["id"]).file
    with pytest.raises(uploads.NotPendingError):
        uploads.complete(late, [part["id"]], None)
    monkeypatch.setattr(uploads, "_order_parts", lambda upload, ids: [])
    late.bytes = 0
    uploads.complete(late, [], None)
    assert Upload.objects.get(id=begun["id"]).file == first
    assert File.objects.count() == 1


def test_a_cancelled_upload_leaves_nothing(api, folder):
    begun = begin(api).json()
    part = add(api, begun["id"], CONTENT).json()
    for _ in range(2):
        answer = api.post(f"/v1/uploads/{begun['id']}/cancel")
        assert answer.json()["status"] == "cancelled"
    assert not [path for path in folder.rglob("*") if path.is_file()]
    assert code(complete(api, begun["id"], part["id"]), 409) == ("upload_not_pending", "id")


def test_an_upload_expires_with_its_parts(api, folder):
    begun = begin(api).json()
    part = add(api, begun["id"], CONTENT).json()
    later = timezone.now() + timedelta(days=1, seconds=1)
    Upload.objects.update(expires_at=timezone.now())
    assert api.get(f"/v1/uploads/{begun['id']}").json()["status"] == "expired"
    assert code(complete(api, begun["id"], part["id"]), 409) == ("upload_not_pending", "id")
    uploads.prune(later)
    assert not UploadPart.objects.exists()
    assert not [path for path in folder.rglob("*") if path.is_file()]
    assert code(api.get(f"/v1/uploads/{begun['id']}"), 404) == ("upload_not_found", "id")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"bytes": 0}, "bytes"),
        ({"mime_type": "image/png"}, "mime_type"),
        ({"filename": "x" * 256}, "filename"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, "expires_after.seconds"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_is_wrong_with_an_upload_is_named(api, fields, expected):
    assert code(begin(api, **fields))[1] == expected
    assert not Upload.objects.exists()


def test_parts_that_do_not_make_the_file_are_refused(api, folder):
    begun = begin(api).json()
    add(api, begun["id"], CONTENT[:9])  # sent again, since its answer was lost
    too_many = add(api, begun["id"], CONTENT * 2)
    assert code(too_many) == ("invalid_value", "data")
    part, rest = (add(api, begun["id"], piece).json() for piece in (CONTENT[:9], CONTENT[9:]))
    for ids in ([part["id"]], [part["id"], part["id"]], [part["id"], "part_0"]):
        assert code(complete(api, begun["id"], *ids)) == ("invalid_value", "part_ids")
    wrong = complete(api, begun["id"], part["id"], rest["id"], md5="0" * 32)
    assert code(wrong) == ("invalid_value", "md5")
    assert complete(api, begun["id"], part["id"], rest["id"]).status_code == 200
    assert File.objects.count() == 1


def test_bodies_that_are_no_parts_are_refused(api):
    begun = begin(api).json()
    path = f"/v1/uploads/{begun['id']}/parts"
    assert code(api.post(path, {"data": "text"})) == ("missing_required_parameter", "data")
    other = {"data": SimpleUploadedFile("part", b"x"), "file": "x"}
    assert code(api.post(path, other)) == ("unknown_parameter", "file")
    assert code(api.post(path, {}, content_type="application/json"), 415)[0] == (
        "unsupported_media_type"
    )


def test_pending_uploads_take_room(api, settings, folder):
    settings.MAX_STORED_BYTES = 100
    settings.MAX_FILE_BYTES = 90
    assert code(begin(api, 91), 413)[0] == "payload_too_large"
    assert begin(api, 90).status_code == 200
    assert code(begin(api, 11)) == ("storage_limit_exceeded", "bytes")
    assert code(upload(api, b"x" * 11)) == ("storage_limit_exceeded", "file")


def test_the_number_of_files_and_pending_uploads_is_bounded(api, settings, folder):
    settings.MAX_STORED_FILES = 2
    assert upload(api, b"x").status_code == 200
    begun = begin(api).json()
    assert code(begin(api)) == ("storage_limit_exceeded", "bytes")
    refused = upload(api, b"x")
    assert code(refused) == ("storage_limit_exceeded", "file")
    assert "may have 2 files" in refused.json()["error"]["message"]
    for _ in range(2):  # a part that is sent again is no further file
        assert add(api, begun["id"], CONTENT).status_code == 200


def test_storing_counts_toward_the_requests_of_a_minute(api, monkeypatch, folder):
    begun, asked = begin(api).json(), []

    async def count_request(process, principal):
        asked.append(principal)
        raise APIError("request_rate_exceeded")

    monkeypatch.setattr(rate_limits, "count_request", count_request)
    batch = {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"}
    json = {"content_type": "application/json"}
    for answer in (
        upload(api, b"x"),
        begin(api),
        add(api, begun["id"], b"x"),
        api.post("/v1/batches", batch, **json),
    ):
        assert code(answer, 429)[0] == "rate_limit_exceeded"
    assert len(asked) == 4


def test_parts_that_were_sent_again_take_room(api, settings, folder):
    settings.MAX_STORED_BYTES = 2 * SIZE
    begun = begin(api).json()
    assert add(api, begun["id"], CONTENT).status_code == 200
    assert add(api, begun["id"], CONTENT[:9]).status_code == 200
    assert code(begin(api, SIZE - 8)) == ("storage_limit_exceeded", "bytes")
    assert begin(api, SIZE - 9).status_code == 200
    assert code(add(api, begun["id"], b"x")) == ("storage_limit_exceeded", "data")


def test_the_number_of_parts_is_bounded(api, monkeypatch, folder):
    """Each is a file, also one without a byte."""
    monkeypatch.setattr(uploads, "MAX_PARTS", 2)
    begun = begin(api).json()
    assert [add(api, begun["id"], b"x").status_code for _ in range(2)] == [200, 200]
    assert code(add(api, begun["id"], b"x")) == ("invalid_value", "data")


def test_an_upload_cancelled_while_it_completes_is_no_error(
    api,
    folder,
    monkeypatch,
):
    begun = begin(api).json()
    part = add(api, begun["id"], CONTENT).json()
    in_order = uploads._order_parts

    def late(upload, ids):
        parts = in_order(upload, ids)
        uploads.cancel(upload)
        return parts

    monkeypatch.setattr(uploads, "_order_parts", late)
    assert code(complete(api, begun["id"], part["id"]), 409) == ("upload_not_pending", "id")
    assert not File.objects.exists()


@pytest.mark.parametrize("verb", ["complete", "cancel"])
def test_an_upload_that_is_pruned_meanwhile_is_gone(api, folder, monkeypatch, verb):
    """Its day ended while it was completed or cancelled."""
    begun = begin(api).json()
    part = add(api, begun["id"], CONTENT).json()
    end = uploads._end

    def late(*args):
        uploads.prune(timezone.now() + timedelta(days=2))
        return end(*args)

    monkeypatch.setattr(uploads, "_end", late)
    body = {"part_ids": [part["id"]]} if verb == "complete" else {}
    answer = api.post(f"/v1/uploads/{begun['id']}/{verb}", body, content_type="application/json")
    assert code(answer, 404) == ("upload_not_found", "id")
    assert not File.objects.exists()
    assert not [path for path in folder.rglob("*") if path.is_file()]


async def test_calls_that_come_together_join_one_file_at_a_time(api, owner, folder, monkeypatch):
    """Each writes the whole file twice: any number of them would fill the disk."""
    begun = (await sync_to_async(begin)(api)).json()
    part = (await sync_to_async(add)(api, begun["id"], CONTENT)).json()
    joined, running, most = uploads._join, [], []

    def slow(*args):
        running.append(1)
        most.append(len(running))
        time.sleep(0.2)
        running.pop()
        return joined(*args)

    async def call():
        async with ThreadSensitiveContext():  # a thread for each request, as in the server
            answer = await AsyncClient().post(
                f"/v1/uploads/{begun['id']}/complete",
                {"part_ids": [part["id"]]},
                content_type="application/json",
                headers=owner.headers,
            )
            await sync_to_async(connections.close_all)()  # this thread's
            return answer

    monkeypatch.setattr(uploads, "_join", slow)
    answers = await asyncio.gather(*(call() for _ in range(4)))
    assert most == [1]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["file"]["id"] for answer in answers}) == 1
    assert await File.objects.acount() == 1


def test_the_rest_of_a_file_can_be_read(api, folder):
    file = upload(api, CONTENT).json()
    path = f"/v1/files/{file['id']}/content"
    whole = api.get(path)
    assert whole.headers["Accept-Ranges"] == "bytes"
    rest = api.get(path, headers={"range": "bytes=7-", "if-range": whole.headers["ETag"]})
    assert rest.status_code == 206
    assert content_of(rest) == CONTENT[7:]
    assert rest.headers["Content-Range"] == f"bytes 7-{len(CONTENT) - 1}/{len(CONTENT)}"
    assert rest.headers["Content-Length"] == str(len(CONTENT) - 7)
    for headers in (
        {"range": "bytes=7-", "if-range": '"another"'},
        {"range": "bytes=0-3"},
        {"range": "lines=7-"},
    ):
        answer = api.get(path, headers=headers)
        assert (answer.status_code, content_of(answer)) == (200, CONTENT)
    beyond = api.get(path, headers={"range": f"bytes={len(CONTENT)}-"})
    assert code(beyond, 416) == ("range_not_satisfiable", "Range")


def test_parallel_parts_and_files_do_not_exceed_the_limit(api, settings, folder, monkeypatch):
    """What is being written counts already: its room is reserved before its content is stored."""
    settings.MAX_STORED_BYTES = 2 * SIZE
    begun = begin(api).json()
    answers = []
    save = FileSystemStorage.save

    def slow(storage, *args, **options):
        monkeypatch.setattr(FileSystemStorage, "save", save)
        answers.append(add(api, begun["id"], CONTENT[:9]))  # sent again, in room of its own
        answers.append(upload(api, CONTENT))
        answers.append(begin(api, 1))
        return save(storage, *args, **options)

    monkeypatch.setattr(FileSystemStorage, "save", slow)
    assert add(api, begun["id"], CONTENT).status_code == 200
    assert [answer.status_code for answer in answers] == [200, 400, 200]
    monkeypatch.setattr(FileSystemStorage, "save", slow)
    answers.clear()
    settings.MAX_STORED_BYTES = 3 * SIZE + 10
    assert upload(api, CONTENT).status_code == 200
    assert [answer.status_code for answer in answers] == [200, 400, 200]
    assert Upload.objects.count() == 3


def test_a_part_of_an_upload_that_ends_meanwhile_leaves_nothing(api, folder, monkeypatch):
    begun = begin(api).json()
    save = FileSystemStorage.save

    def late(storage, *args, **options):
        uploads.cancel(Upload.objects.get(id=begun["id"]))
        return save(storage, *args, **options)

    monkeypatch.setattr(FileSystemStorage, "save", late)
    assert code(add(api, begun["id"], CONTENT), 409) == ("upload_not_pending", "id")
    assert not UploadPart.objects.exists()
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.wide
def test_a_part_of_an_upload_that_ends_between_two_steps_leaves_nothing(run_apart):
    assert run_apart("parts_together") == ["0", "0"]


def test_a_part_that_cannot_be_stored_takes_no_room(api, folder, monkeypatch):
    begun = begin(api).json()

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(FileSystemStorage, "save", full)
        assert add(api, begun["id"], CONTENT).status_code == 503
        assert upload(api, CONTENT).status_code == 503
    assert not UploadPart.objects.exists()
    assert Upload.objects.count() == 1
