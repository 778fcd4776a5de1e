"""/v1/files: uploads by the official client, and invalid ones."""

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.files.storage import FileSystemStorage, default_storage
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from completions.batches import files
from completions.models import File
from completions.models.timed_ids import new_id

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("folder")]

LINE = b'{"custom_id": "a"}\n'


def upload(api, content=LINE, name="in.jsonl", **parts):
    parts = {"purpose": "batch", "file": SimpleUploadedFile(name, content), **parts}
    return api.post("/v1/files", {k: v for k, v in parts.items() if v is not None})


def content_of(response):
    async def read():
        return b"".join([chunk async for chunk in response.streaming_content])

    return async_to_sync(read)()


def code(response, status=400):
    assert response.status_code == status, response.content
    error = response.json()["error"]
    return error["code"], error["param"]


def test_a_file_is_stored_read_and_deleted(api, folder, owner):
    created = upload(api, LINE * 3)
    assert created.status_code == 200
    body = created.json()
    assert body == {
        "id": body["id"],
        "object": "file",
        "bytes": 57,
        "created_at": body["created_at"],
        "filename": "in.jsonl",
        "purpose": "batch",
        "status": "processed",
        "expires_at": body["created_at"] + 30 * 86400,
    }
    path = f"/v1/files/{body['id']}"
    assert api.get(path).json() == body
    answer = api.get(f"{path}/content", headers={"accept": "application/binary"})
    assert content_of(answer) == LINE * 3
    assert answer.headers["Content-Type"] == "application/jsonl"
    assert answer.headers["Content-Length"] == "57"
    assert "filename*=UTF-8''in.jsonl" in answer.headers["Content-Disposition"]
    stored = [path for path in folder.rglob("*") if path.is_file()]
    assert stored == [folder / str(owner.organization.pk) / body["id"]]

    assert api.delete(path).json() == {"id": body["id"], "object": "file", "deleted": True}
    assert not stored[0].exists()
    for gone in (api.get(path), api.get(f"{path}/content"), api.delete(path)):
        assert code(gone, 404) == ("file_not_found", "id")


def test_a_large_file_is_never_whole_in_memory(api, folder, settings):
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 1000
    body = upload(api, b"x" * 300_000).json()
    answer = api.get(f"/v1/files/{body['id']}/content")

    async def read():
        return [len(chunk) async for chunk in answer.streaming_content]

    sizes = async_to_sync(read)()
    assert sum(sizes) == 300_000
    assert max(sizes) <= 65536
    assert list(settings.FILE_UPLOAD_TEMP_DIR.iterdir()) == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\r\nb.jsonl", "ü" * 300, "a/b"])
def test_a_file_name_is_only_a_label(api, folder, name):
    body = upload(api, name=name).json()
    assert "\n" not in body["filename"]
    assert len(body["filename"]) <= 255
    assert [p.name for p in folder.rglob("*") if p.is_file()] == [body["id"]]
    content_of(api.get(f"/v1/files/{body['id']}/content"))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"file": None}, ("missing_required_parameter", "file")),
        ({"file": "text"}, ("missing_required_parameter", "file")),
        ({"purpose": None}, ("missing_required_parameter", "purpose")),
        ({"purpose": "fine-tune"}, ("unsupported_value", "purpose")),
        ({"purpose": ["batch", "batch"]}, ("invalid_value", "purpose")),
        ({"colour": "red"}, ("unknown_parameter", "colour")),
        ({"expires_after[seconds]": "3600"}, ("invalid_value", "expires_after[anchor]")),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            ("invalid_value", "expires_after[seconds]"),
        ),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "1e5"},
            ("invalid_value", "expires_after[seconds]"),
        ),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "٣٦٠٠"},
            ("invalid_value", "expires_after[seconds]"),
        ),
        ({"expires_after[anchor]": "created_at"}, ("invalid_value", "expires_after[seconds]")),
    ],
)
def test_what_is_wrong_with_an_upload_is_named(api, folder, parts, expected):
    assert code(upload(api, **parts)) == expected
    assert not File.objects.exists()
    assert not folder.exists()


@pytest.mark.parametrize("name", ["purpose", "file", "colour"])
def test_a_field_that_is_too_large_is_refused_with_its_own_limit(api, settings, name):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 3000
    answer = upload(api, **{name: "x" * 3001})
    assert code(answer, 413) == ("payload_too_large", None)
    message = answer.json()["error"]["message"]
    assert "3000 bytes" in message
    assert "as a file" in message


def test_other_bodies_are_refused(api):
    answer = api.post("/v1/files", {"purpose": "batch"}, content_type="application/json")
    assert code(answer, 415) == ("unsupported_media_type", None)
    assert "multipart/form-data" in answer.json()["error"]["message"]
    broken = api.post("/v1/files", b"--x\r\n", content_type="multipart/form-data")
    assert code(broken)[0] == "invalid_request"


def test_sizes_are_capped(api, settings):
    settings.MAX_FILE_BYTES = 100
    assert code(upload(api, b"x" * 101), 413)[0] == "payload_too_large"
    settings.MAX_STORED_BYTES = 150
    assert upload(api, b"x" * 100).status_code == 200
    assert code(upload(api, b"x" * 51)) == ("storage_limit_exceeded", "file")
    assert upload(api, b"x" * 50).status_code == 200


def test_files_expire(api, folder):
    parts = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    body = upload(api, **parts).json()
    assert body["expires_at"] == body["created_at"] + 3600
    kept = upload(api).json()
    assert files.prune(timezone.now()) == 0
    File.objects.filter(id=body["id"]).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert code(api.get(f"/v1/files/{body['id']}"), 404)[0] == "file_not_found"
    assert [file["id"] for file in api.get("/v1/files").json()["data"]] == [kept["id"]]
    assert files.prune(timezone.now()) == 1
    assert [p.name for p in folder.rglob("*") if p.is_file()] == [kept["id"]]


def test_lists_are_turned_page_by_page(api):
    ids = [upload(api).json()["id"] for _ in range(5)]
    File.objects.filter(id__in=ids[1:3]).update(created_at=timezone.now())  # a tie among others
    newest_first = [file["id"] for file in api.get("/v1/files").json()["data"]]
    assert sorted(newest_first) == sorted(ids)
    seen, after = [], ""
    while True:
        page = api.get("/v1/files", {"limit": 2, "after": after}).json()
        seen += [file["id"] for file in page["data"]]
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], seen[-1])
        if not page["has_more"]:
            break
        after = page["last_id"]
    assert seen == newest_first
    upwards = api.get("/v1/files", {"order": "asc"}).json()["data"]
    assert [file["id"] for file in upwards] == newest_first[::-1]
    assert api.get("/v1/files", {"purpose": "batch_output"}).json() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_all_files_can_be_deleted_page_by_page(api, order):
    ids = [upload(api).json()["id"] for _ in range(5)]
    File.objects.filter(id=ids[3]).update(expires_at=timezone.now())
    seen, after = [], ""
    while True:
        page = api.get("/v1/files", {"limit": 1, "after": after, "order": order}).json()
        for file in page["data"]:
            assert api.delete(f"/v1/files/{file['id']}").status_code == 200
            seen.append(after := file["id"])
        if not page["has_more"]:
            break
    ids.pop(3)
    assert seen == (ids if order == "asc" else ids[::-1])


def test_a_list_goes_on_after_an_expired_row(api):
    ids = [upload(api).json()["id"] for _ in range(3)]
    File.objects.filter(id=ids[1]).update(expires_at=timezone.now())
    after = api.get("/v1/files", {"after": ids[1]}).json()
    assert [file["id"] for file in after["data"]] == ids[:1]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"after": new_id("batch_")}, "after"),
        ({"after": f"file-{'0' * 33}"}, "after"),
        ({"limit": "10001"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "file-nobody"}, "after"),
    ],
)
def test_bad_pages(api, query, param):
    assert code(api.get("/v1/files", query)) == ("invalid_value", param)


def test_other_organizations_see_nothing(api, stranger):
    file_id = upload(api).json()["id"]
    other = Client(headers=stranger.headers)
    assert other.get("/v1/files").json()["data"] == []
    for answer in (
        other.get(f"/v1/files/{file_id}"),
        other.get(f"/v1/files/{file_id}/content"),
        other.delete(f"/v1/files/{file_id}"),
    ):
        assert code(answer, 404) == ("file_not_found", "id")
    # A place in time: the answer is the same for an id that nobody has.
    for after in (file_id, new_id("file-")):
        assert other.get("/v1/files", {"after": after}).json()["data"] == []
    assert default_storage.exists(File.objects.get().content.name)


@pytest.mark.parametrize(
    ("query", "expected", "hint"),
    [
        ({"purpos": "batch"}, ("unknown_parameter", "purpos"), "Did you mean purpose?"),
        ({"before": "file-1"}, ("unknown_parameter", "before"), "This route has: limit, after,"),
        ({"limit[]": "2"}, ("unknown_parameter", "limit[]"), "Did you mean limit?"),
        ({"x" * 1000: "1"}, ("unknown_parameter", "x" * 64), "This route has"),
    ],
)
def test_unknown_filters_are_refused(api, query, expected, hint):
    answer = api.get("/v1/files", query)
    assert code(answer) == expected
    assert hint in answer.json()["error"]["message"]


def test_an_organization_takes_its_files_along(api, owner, folder):
    upload(api)
    owner.organization.delete()
    assert not File.objects.exists()
    assert not [p for p in folder.rglob("*") if p.is_file()]


def test_a_killed_upload_is_never_seen_and_is_pruned(api, owner, folder, monkeypatch):
    class Killed(BaseException):
        """The process ends after it wrote the content, and cleans nothing up."""

    save = FileSystemStorage.save

    def saved_before_the_end(*args: Any, **options: Any) -> None:
        save(*args, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(FileSystemStorage, "save", saved_before_the_end)
        patch.setattr(files, "_delete", lambda _files: 0)
        with pytest.raises(Killed):
            upload(api)
    assert [path for path in folder.rglob("*") if path.is_file()]
    assert api.get("/v1/files").json()["data"] == []
    files.prune(timezone.now() + timedelta(days=1))
    assert not File.objects.exists()
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_a_file_whose_row_ended_while_it_was_written_leaves_nothing(api, folder, monkeypatch):
    save = FileSystemStorage.save

    def pruned_meanwhile(*args: Any, **options: Any) -> Any:
        File.objects.all().delete()
        return save(*args, **options)

    monkeypatch.setattr(FileSystemStorage, "save", pruned_meanwhile)
    refused = upload(api)
    assert code(refused, 500) == ("internal_error", None)
    message = refused.json()["error"]["message"]
    assert "was not stored: writing it took longer than 1 h, or it was deleted" in message
    assert not [path for path in folder.rglob("*") if path.is_file()]


def upload_raw(api, name, size=1):
    """Upload a file whose name is these bytes."""
    boundary, head = b"--b", b'\r\nContent-Disposition: form-data; name="'
    content = b'%b%bpurpose"\r\n\r\nbatch\r\n%b%bfile"; filename="%b"\r\n\r\n%b\r\n%b--\r\n' % (
        boundary,
        head,
        boundary,
        head,
        name,
        b"x" * size,
        boundary,
    )
    answer = api.generic("POST", "/v1/files", content, "multipart/form-data; boundary=b")
    assert answer.status_code == 200, answer.content
    return answer


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        (b"caf\xe9.jsonl", "caf?.jsonl"),
        ("n\N{RIGHT-TO-LEFT OVERRIDE}lnosj.exe".encode(), "nlnosj.exe"),
        ("a\u2028b\x85c\u200fd".encode(), "abcd"),
    ],
    ids=ascii,
)
def test_a_name_is_kept_as_far_as_it_reads_as_it_is(api, folder, name, kept):
    assert upload_raw(api, name).json()["filename"] == kept


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("name", ["a." + "x" * 300, "7. " + "\N{SNOWMAN}" * 100, "n\x00\n.jsonl"])
def test_any_name_is_taken(api, settings, folder, name, size):
    """The system limits names of files to 255 bytes, also of what is uploaded to a disk."""
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 100
    answer = upload_raw(api, name.encode(), size)
    kept = answer.json()["filename"]
    assert kept
    assert kept in (name.replace("\0", "").replace("\n", ""), name[1:256])
    assert content_of(api.get(f"/v1/files/{answer.json()['id']}/content")) == b"x" * size
