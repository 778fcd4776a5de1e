"""/v1/batches: valid bodies, access, and lists."""

import json

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from completions.models import Batch, File

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("folder")]


@pytest.fixture
def file_id(api):
    parts = {"purpose": "batch", "file": SimpleUploadedFile("in.jsonl", b"{}\n")}
    return api.post("/v1/files", parts).json()["id"]


def post(api, path="/v1/batches", **body):
    return api.post(path, json.dumps(body), content_type="application/json")


def create(api, file_id, **fields):
    fields = {"endpoint": "/v1/completions", "completion_window": "24h", **fields}
    return post(api, input_file_id=file_id, **fields)


def test_a_new_batch_waits_for_its_validation(api, file_id):
    keep = {"anchor": "created_at", "seconds": 3600}
    body = create(api, file_id, output_expires_after=keep).json()
    assert body["object"] == "batch"
    assert body["id"].startswith("batch_")
    assert body["status"] == "validating"
    assert body["input_file_id"] == file_id
    for name in (
        "model",
        "errors",
        "output_file_id",
        "error_file_id",
        "in_progress_at",
        "finalizing_at",
        "completed_at",
        "failed_at",
        "expired_at",
        "cancelling_at",
        "cancelled_at",
        "metadata",
    ):
        assert body[name] is None
    assert Batch.objects.get().output_seconds == 3600
    assert api.get(f"/v1/batches/{body['id']}").json() == body


@pytest.mark.parametrize(
    ("window", "seconds"),
    [("1m", 60), ("90m", 5400), ("24h", 86400), ("168h", 604800), ("7d", 604800)],
)
def test_the_completion_window_sets_the_expiry(api, file_id, window, seconds):
    body = create(api, file_id, completion_window=window).json()
    assert body["expires_at"] - body["created_at"] == seconds


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "invalid_value", "endpoint"),
        ({"endpoint": None}, "missing_required_parameter", "endpoint"),
        ({"completion_window": "0h"}, "invalid_value", "completion_window"),
        ({"completion_window": "169h"}, "invalid_value", "completion_window"),
        ({"completion_window": "8d"}, "invalid_value", "completion_window"),
        ({"completion_window": "0m"}, "invalid_value", "completion_window"),
        ({"completion_window": "-5m"}, "invalid_value", "completion_window"),
        ({"completion_window": "10081m"}, "invalid_value", "completion_window"),
        ({"completion_window": "5 parsecs"}, "invalid_value", "completion_window"),
        ({"completion_window": "90s"}, "invalid_value", "completion_window"),
        ({"completion_window": "1.5h"}, "invalid_value", "completion_window"),
        ({"completion_window": "٣h"}, "invalid_value", "completion_window"),
        ({"completion_window": "24h\n"}, "invalid_value", "completion_window"),
        ({"completion_window": ""}, "invalid_value", "completion_window"),
        ({"completion_window": 24}, "invalid_type", "completion_window"),
        ({"on_late": "maybe"}, "invalid_value", "on_late"),
        ({"metadata": {"a": 1}}, "invalid_type", "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "invalid_value", "metadata.a"),
        ({"metadata": {"a" * 65: "x"}}, "invalid_value", "metadata"),
        ({"metadata": {"a": "\0"}}, "invalid_value", "metadata"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "invalid_value", "metadata"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 3599}},
            "integer_below_min_value",
            "output_expires_after.seconds",
        ),
        (
            {"output_expires_after": {"anchor": "now", "seconds": 3600}},
            "invalid_value",
            "output_expires_after.anchor",
        ),
        ({"colour": "red"}, "unknown_parameter", "colour"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(api, file_id, fields, code, param):
    refused = create(api, file_id, **fields)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert not Batch.objects.exists()


def test_the_input_file_must_be_ones_own_and_for_a_batch(api, file_id, stranger):
    for client, name in (
        (api, "file-nobody"),
        (api, "file-\0"),
        (Client(headers=stranger.headers), file_id),
    ):
        refused = create(client, name)
        assert refused.status_code == 404
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("file_not_found", "input_file_id")
    File.objects.update(purpose="batch_output")
    assert create(api, file_id).json()["error"]["code"] == "invalid_file_purpose"


def test_too_many_waiting_lines_refuse_new_batches(api, file_id, settings):
    settings.MAX_QUEUED_LINES = 10
    first = create(api, file_id).json()["id"]
    Batch.objects.filter(id=first).update(status="in_progress", total=12, completed=1, failed=1)
    refused = create(api, file_id)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "batch_limit_exceeded"
    assert refused.headers["Retry-After"] == "60"
    Batch.objects.filter(id=first).update(completed=2)
    assert create(api, file_id).status_code == 200
    settings.MAX_VALIDATING_BATCHES = 1
    assert create(api, file_id).status_code == 429


@pytest.mark.wide
def test_batches_that_come_together_are_bounded(run_apart):
    assert run_apart("batches_together") == ["batch_limit_exceeded"] * 5 + ["created"] * 3 + ["3"]


@pytest.mark.wide
def test_batches_that_come_together_are_not_promised_the_same_window(run_apart):
    assert run_apart("windows_together") == ["created"] + ["window_too_short"] * 3


def test_lists_are_turned_page_by_page(api, file_id):
    ids = [create(api, file_id).json()["id"] for _ in range(3)]
    page = api.get("/v1/batches", {"limit": 2}).json()
    assert [batch["id"] for batch in page["data"]] == ids[:0:-1]
    assert page["has_more"]
    rest = api.get("/v1/batches", {"limit": 2, "after": page["last_id"]}).json()
    assert [batch["id"] for batch in rest["data"]] == ids[:1]
    assert not rest["has_more"]
    assert api.get("/v1/batches", {"limit": 101}).json()["error"]["param"] == "limit"


def test_other_organizations_see_nothing(api, file_id, stranger):
    batch_id = create(api, file_id).json()["id"]
    other = Client(headers=stranger.headers)
    assert other.get("/v1/batches").json()["data"] == []
    for answer in (
        other.get(f"/v1/batches/{batch_id}"),
        post(other, f"/v1/batches/{batch_id}/cancel"),
        post(other, f"/v1/batches/{batch_id}/resubmit"),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "batch_not_found"
    assert Batch.objects.get().status == "validating"


def test_only_an_ended_batch_is_sent_again(api, file_id):
    batch_id = create(api, file_id).json()["id"]
    refused = post(api, f"/v1/batches/{batch_id}/resubmit")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "nothing_to_resubmit")
    Batch.objects.update(status="expired", failed=1)
    File.objects.all().delete()
    assert post(api, f"/v1/batches/{batch_id}/resubmit").status_code == 404


def test_cancelling_needs_no_body(api, file_id):
    batch_id = create(api, file_id).json()["id"]
    answer = api.post(f"/v1/batches/{batch_id}/cancel", content_type="application/json")
    assert answer.json()["status"] == "cancelling"


INLINE = [{"body": {"model": "tiny", "prompt": [1]}}, {"custom_id": "b", "body": {"prompt": [2]}}]


def test_requests_may_come_with_the_call(api):
    body = post(api, requests=INLINE, endpoint="/v1/completions", metadata={"a": "b"}).json()
    assert (body["status"], body["metadata"]) == ("validating", {"a": "b"})
    file = api.get(f"/v1/files/{body['input_file_id']}").json()
    assert (file["filename"], file["purpose"]) == ("requests.jsonl", "batch")
    with File.objects.get().content.open("rb") as stored:
        content = stored.read()
    assert [json.loads(line) for line in content.splitlines()] == [
        {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": each["body"]}
        for name, each in zip(("request-1", "b"), INLINE, strict=True)
    ]


@pytest.mark.parametrize(
    ("requests", "code", "param"),
    [
        (None, "missing_required_parameter", "input_file_id"),
        ([], "empty_array", "requests"),
        ([{"body": {}}] * 10_001, "array_above_max_length", "requests"),
        ([INLINE[0], 1], "invalid_type", "requests[1]"),
        ([INLINE[0], {}], "missing_required_parameter", "requests[1].body"),
        ([{"body": {}, "url": "/v1/files"}], "url_mismatch", "requests[0].url"),
        ([{"body": {}, "x": 1}], "unknown_parameter", "requests[0].x"),
        ([{"body": {}, "custom_id": 1}], "invalid_value", "requests[0].custom_id"),
    ],
)
def test_wrong_inline_requests_leave_nothing_behind(api, requests, code, param):
    response = post(api, requests=requests, endpoint="/v1/completions")
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert not File.objects.exists()
    assert not Batch.objects.exists()


def test_a_file_and_requests_exclude_each_other(api, file_id):
    response = create(api, file_id, requests=INLINE)
    assert response.status_code == 400
    assert "not both" in response.json()["error"]["message"]


def test_a_refused_batch_leaves_no_file_of_its_requests(api, settings):
    settings.MAX_VALIDATING_BATCHES = 0
    assert post(api, requests=INLINE, endpoint="/v1/completions").status_code == 429
    assert not File.objects.exists()
