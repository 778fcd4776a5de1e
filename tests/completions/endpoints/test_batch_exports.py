"""/v1/batches/{id}/export: the same rows in each format, and what cannot be exported."""

import csv
import io
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from asgiref.sync import async_to_sync
from django.http import StreamingHttpResponse
from django.test import Client
from django.utils import timezone

from completions.models import Batch, BatchStatus, File
from tests.completions.conftest import Tenant
from tests.completions.console.batch_of_results import ended_batch

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("folder")]


@pytest.fixture
def batch(owner: Tenant, api: Client) -> Batch:
    return ended_batch(owner.key, 25)


def export(api: Client, batch: Batch, **query: str) -> Any:
    return api.get(f"/v1/batches/{batch.pk}/export", query)


def read(response: StreamingHttpResponse) -> bytes:
    assert response.status_code == 200

    async def join() -> bytes:
        content: Any = response.streaming_content
        return b"".join([piece async for piece in content])

    return async_to_sync(join)()


def refusal(response: Any) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


def test_each_format_has_the_same_rows(api: Client, batch: Batch) -> None:
    rows = [json.loads(line) for line in read(export(api, batch)).splitlines()]
    assert [row["line"] for row in rows] == list(range(1, 26))
    assert rows[9] | {
        "custom_id": "line-10", "text": None, "status_code": 500, "error_code": "worker_error",
        "error_message": "blue \N{SNOWMAN} failed",
    } == rows[9]  # fmt: skip
    table = pq.read_table(io.BytesIO(read(export(api, batch, format="parquet"))))
    assert table.to_pylist() == rows
    text = read(export(api, batch, format="csv")).decode()
    cells = list(csv.DictReader(io.StringIO(text, newline="")))
    assert cells == [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in rows
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("jsonl", "application/jsonl"),
        ("csv", "text/csv; charset=utf-8"),
        ("parquet", "application/vnd.apache.parquet"),
    ],
)
def test_a_browser_saves_it_under_its_name(api: Client, batch: Batch, name: str, kind: str) -> None:
    response = export(api, batch, format=name)
    assert read(response)
    assert response.headers["Content-Type"] == kind
    assert f'attachment; filename="{batch.pk}.{name}"' in response.headers["Content-Disposition"]


def test_a_wrong_format_is_named(api: Client, batch: Batch) -> None:
    refused = export(api, batch, format="xlsx")
    assert refusal(refused) == (400, "invalid_value", "format")
    assert "one of jsonl, csv, parquet" in refused.json()["error"]["message"]
    assert refusal(export(api, batch, fromat="csv")) == (400, "unknown_parameter", "fromat")


def test_a_missing_library_is_named(
    api: Client, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused = export(api, batch, format="parquet")
    assert refusal(refused) == (400, "unsupported_value", "format")
    assert "requirements-export.txt" in refused.json()["error"]["message"]
    assert read(export(api, batch, format="csv"))


@pytest.mark.parametrize("status", [BatchStatus.IN_PROGRESS, BatchStatus.FAILED])
def test_a_batch_without_results(api: Client, batch: Batch, status: BatchStatus) -> None:
    Batch.objects.update(status=status)
    assert refusal(export(api, batch)) == (409, "nothing_to_export", "id")


@pytest.mark.parametrize("status", [BatchStatus.CANCELLED, BatchStatus.EXPIRED])
def test_a_batch_that_ended_in_its_validation(api: Client, batch: Batch, status: str) -> None:
    """Its file was not validated: it may hold anything."""
    file = File.objects.get(pk=batch.input_file_id)
    Path(file.content.path).write_bytes(b"no JSON\n")
    counts = dict.fromkeys(("total", "completed", "failed"), 0)
    Batch.objects.update(status=status, in_progress_at=None, **counts)
    refused = export(api, batch)
    assert refusal(refused) == (409, "nothing_to_export", "id")
    assert f"{status} before any line ran" in refused.json()["error"]["message"]


def test_files_that_have_expired(api: Client, batch: Batch) -> None:
    """They are gone before they are deleted."""
    for file_id in (batch.input_file_id, batch.output_file_id):
        file = File.objects.filter(pk=file_id)
        file.update(expires_at=timezone.now() - timedelta(seconds=1))
        assert refusal(export(api, batch)) == (404, "file_not_found", "id")
        file.update(expires_at=None)


def test_files_that_are_gone(api: Client, batch: Batch) -> None:
    for file_id in (batch.input_file_id, batch.output_file_id):
        file = File.objects.get(pk=file_id)
        file.content.storage.delete(str(file.content.name))
        assert refusal(export(api, batch)) == (404, "file_not_found", "id")
        file.delete()
        assert refusal(export(api, batch)) == (404, "file_not_found", "id")


def test_a_stranger_finds_no_batch(batch: Batch, api: Client, stranger: Tenant) -> None:
    theirs = Client(headers=stranger.headers)
    assert refusal(export(theirs, batch)) == (404, "batch_not_found", "id")
