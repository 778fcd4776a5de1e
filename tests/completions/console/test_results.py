"""The results of a batch in the admin: filtered, paged, opened, downloaded and sent again."""

import csv
import io
import json
import re
from collections.abc import Callable
from html import unescape
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import orjson
import pyarrow.parquet as pq
import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from django.utils.html import escape
from pytest_django.fixtures import Settings

from completions.batches import lines
from completions.batches.results import search
from completions.batches.results.search import Contents, Criteria
from completions.console import results
from completions.models import AuditAction, AuditEntry, Batch, BatchResult, File
from tests.completions.admin.conftest import admin, in_role  # noqa: F401 - fixtures
from tests.completions.conftest import Tenant
from tests.completions.console.batch_of_results import ended_batch, is_cut, reviewed_batch
from tests.operations import counted_operations

pytestmark = pytest.mark.usefixtures("fake_process")


@pytest.fixture(autouse=True)
def folder(settings: Settings, tmp_path: Path) -> None:
    """A storage of the test's own."""
    backend = "django.core.files.storage.FileSystemStorage"
    own = {"BACKEND": backend, "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "default": own}


@pytest.fixture
def batch(served: None, owner: Tenant) -> Batch:
    owner.organization.store_prompts = True
    owner.organization.save()
    owner.key.organization = owner.organization
    return ended_batch(owner.key, 140)


def numbers(client: Client, batch: Batch, **asked: Any) -> list[int]:
    page = client.get(f"/admin/batches/{batch.pk}/results/", asked).content.decode()
    return [int(found) for found in re.findall(r'<tr data-number="(\d+)"', page)]


def failed(number: int) -> bool:
    return number % 10 == 0


def test_filters(in_role: Callable[[str], Client], batch: Batch) -> None:  # noqa: F811
    viewer = in_role("Viewer")
    everything = range(1, 141)
    assert numbers(viewer, batch) == list(everything[:50])
    assert numbers(viewer, batch, after=100) == list(everything[100:])
    assert numbers(viewer, batch, status="failed") == [n for n in everything if failed(n)]
    assert numbers(viewer, batch, reason="worker_error") == [n for n in everything if failed(n)]
    cut = [n for n in everything if n % 7 == 0 and not failed(n)]
    assert numbers(viewer, batch, reason="length", status="completed") == cut
    assert numbers(viewer, batch, text="NEEDLE") == [140]
    assert numbers(viewer, batch, text="blue \N{SNOWMAN} 2 ") == [2]
    assert numbers(viewer, batch, text='"') == []  # the quotes of the JSON are no text
    assert numbers(viewer, batch, after="x") == list(everything[:50])


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\u2029"], ids=ascii)
@pytest.mark.parametrize("encode", [lines.encode_line, orjson.dumps])
def test_text_is_found_in_files_of_this_and_of_earlier_versions(
    served: None,
    owner: Tenant,
    monkeypatch: pytest.MonkeyPatch,
    character: str,
    encode: Callable[[Any], bytes],
) -> None:
    """Earlier versions wrote these characters raw."""
    monkeypatch.setattr(lines, "encode_line", encode)
    owner.key.organization = owner.organization
    made = ended_batch(owner.key, 2, [f"one{character}two"])
    with Contents(made) as contents:
        found = search.find_page(Criteria(text=f"ONE{character}t"), contents, 0, 50, 5.0)
    assert [row.number for row, _ in found.lines] == [1]


def test_a_line_is_beside_its_request(in_role: Callable[[str], Client], batch: Batch) -> None:  # noqa: F811
    response = in_role("Viewer").get(f"/admin/batches/{batch.pk}/results/77/")
    facts = dict(response.context["facts"])
    assert facts["custom_id"] == "line-77"
    sent, output = (json.loads(text) for _, text in response.context["parts"])
    assert sent["custom_id"] == output["custom_id"] == "line-77"
    assert output["response"]["body"]["choices"][0]["finish_reason"] == "length"
    assert escape(response.context["parts"][1][1]) in response.content.decode()


def test_lines_are_turned_one_by_one(in_role: Callable[[str], Client], batch: Batch) -> None:  # noqa: F811
    """Within the filter, there and back."""
    viewer, seen = in_role("Viewer"), []

    def neighbour(number: int, which: int) -> int | None:
        page = viewer.get(f"/admin/batches/{batch.pk}/results/{number}/?status=failed")
        found: int | None = page.context["neighbours"][which][1]
        return found

    number: int | None = 10
    while number is not None:
        seen.append(number)
        number = neighbour(number, 1)
    assert seen == list(range(10, 141, 10))
    assert [neighbour(each, 0) for each in seen] == [None, *seen[:-1]]


@pytest.mark.parametrize("asked", [{}, {"status": "failed"}])
def test_pages_are_turned_there_and_back(
    in_role: Callable[[str], Client],  # noqa: F811
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, str],
) -> None:
    monkeypatch.setattr(results, "PAGE", 9)
    viewer, pages = in_role("Viewer"), []

    def turn(query: str) -> tuple[list[int], str, str]:
        response = viewer.get(f"/admin/batches/{batch.pk}/results/?{query}")
        rows = [row["number"] for row in response.context["rows"]]
        return rows, response.context["previous"], response.context["next"]

    rows, previous, following = turn(urlencode(asked))
    assert previous == ""
    while True:
        pages.append(rows)
        if not following:
            break
        rows, previous, following = turn(following)
    assert list(chain(*pages)) == [n for n in range(1, 141) if "status" not in asked or failed(n)]
    for page in pages[-2::-1]:
        rows, previous, _ = turn(previous)
        assert rows == page
    assert previous == ""


def test_a_search_goes_back_too(batch: Batch) -> None:
    before, seen = 141, []
    with Contents(batch) as contents:
        while True:
            found = search.find_page(
                Criteria(text="grey"), contents, before, 9, 60.0, backward=True
            )
            seen = [row.number for row, _ in found.lines] + seen
            before = found.searched
            if not found.more:
                break
    assert seen == [n for n in range(1, 140) if n % 4 == 3]


@pytest.fixture
def reviewed(served: None, owner: Tenant) -> Batch:
    owner.organization.store_prompts = True
    owner.organization.save()
    owner.key.organization = owner.organization
    return reviewed_batch(owner.key, 84)


def test_each_property_has_a_column(in_role: Callable[[str], Client], reviewed: Batch) -> None:  # noqa: F811
    page = in_role("Viewer").get(f"/admin/batches/{reviewed.pk}/results/")
    assert [column.name for column in page.context["columns"]] == ["mood", "stars"]
    rows = {row["number"]: row for row in page.context["rows"]}
    assert (rows[4]["cells"], rows[4]["rest"]) == (["bad", "4"], "")
    assert (rows[7]["cells"], rows[7]["rest"]) == (["", ""], '{"mood": "ba')
    assert (rows[10]["cells"], rows[10]["reason"]) == (["", ""], "worker_error")
    assert rows[10]["rest"] == '{"mood": "bad", "stars": 10}'  # the error's message


def test_the_counts_of_the_summary_open_their_lines(
    in_role: Callable[[str], Client],  # noqa: F811
    reviewed: Batch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each link shows as many lines as the summary says."""
    monkeypatch.setattr(results, "PAGE", 100)
    viewer = in_role("Viewer")
    page = viewer.get(f"/admin/completions/batch/{reviewed.pk}/change/").content.decode()
    links = re.findall(
        r'<a class="q-link" href="(/admin/batches/[^"]*\?(?:value|status)=[^"]*)">([^<]*)</a>', page
    )
    assert len(links) == 3 + 1 + 2  # moods, the place of the cut, finish reasons
    for link, words in links:
        asked = dict(parse_qsl(urlsplit(unescape(link)).query))
        assert len(numbers(viewer, reviewed, **asked)) == int(words.split()[-1]), link
    values = {"value": '/mood="good"', "status": "completed"}
    assert numbers(viewer, reviewed, **values) == [
        n for n in range(1, 85) if n % 3 == 0 and not failed(n) and not is_cut(n)
    ]
    reviewed.organization.store_prompts = False
    reviewed.organization.save()
    page = viewer.get(f"/admin/completions/batch/{reviewed.pk}/change/").content.decode()
    assert "?value=" not in page
    assert numbers(viewer, reviewed, value='/mood="good"') == list(range(1, 85))


def test_a_button_says_what_is_sent_again(
    in_role: Callable[[str], Client],  # noqa: F811
    batch: Batch,
) -> None:
    operator = in_role("Operator")
    for asked, said in (
        ({}, "140 lines, about 0.00"),
        ({"status": "failed"}, "14 lines, about 0.00"),
        ({"reason": "length", "status": "failed"}, "0 lines, about 0.00"),
        ({"text": "grey"}, "all lines that the filter finds"),
    ):
        page = operator.get(f"/admin/batches/{batch.pk}/results/", asked).content.decode()
        assert f">Resubmit {said}</button>" in page


def test_a_value_that_the_summary_lacks(
    in_role: Callable[[str], Client],  # noqa: F811
    reviewed: Batch,
) -> None:
    path = f"/admin/batches/{reviewed.pk}/results/?value=%2Fmood%3D%22great%22"
    assert in_role("Viewer").get(path).status_code == 404


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
def test_what_is_filtered_is_downloaded_in_each_format(
    in_role: Callable[[str], Client],  # noqa: F811
    reviewed: Batch,
    name: str,
) -> None:
    path = f"/admin/batches/{reviewed.pk}/results/download/?reason=length&format={name}"
    response = in_role("Viewer").get(path)
    assert f"{reviewed.pk}_filtered.{name}" in response.headers["Content-Disposition"]
    content = read(response)
    rows = {
        "jsonl": lambda: [json.loads(line) for line in content.splitlines()],
        "csv": lambda: list(csv.DictReader(io.StringIO(content.decode(), newline=""))),
        "parquet": lambda: pq.read_table(io.BytesIO(content)).to_pylist(),
    }[name]()
    cut = [n for n in range(1, 85) if is_cut(n) and not failed(n)]
    assert [int(row["line"]) for row in rows] == cut
    assert {"mood", "stars", "text"} <= rows[0].keys()


def read(response: Any) -> bytes:
    async def join() -> bytes:
        return b"".join([piece async for piece in response.streaming_content])

    return async_to_sync(join)()


def test_a_download_that_cannot_be_made_says_why(
    in_role: Callable[[str], Client],  # noqa: F811
    reviewed: Batch,
) -> None:
    viewer = in_role("Viewer")
    path = f"/admin/batches/{reviewed.pk}/results/download/"
    assert viewer.get(path, {"format": "xlsx"}).status_code == 404
    File.objects.filter(pk=reviewed.input_file_id).delete()
    page = viewer.get(path, {"format": "csv"}, follow=True).content.decode()
    assert "Nothing was exported: the input file of" in page


def test_a_search_ends_in_time_and_goes_on(batch: Batch) -> None:
    after, seen, turns = 0, [], 0
    with Contents(batch) as contents:
        while True:
            found = search.find_page(Criteria(text="grey"), contents, after, 40, -1.0)
            assert len(found.lines) <= 40
            seen += [row.number for row, _ in found.lines]
            assert found.searched > after or not found.more
            after, turns = found.searched, turns + 1
            if not found.more:
                break
    assert seen == [n for n in range(1, 140) if n % 4 == 3]
    assert turns == 140  # the time is looked at after each line


def test_texts_are_shown_where_the_organization_lets_them(
    in_role: Callable[[str], Client],  # noqa: F811
    batch: Batch,
) -> None:
    viewer = in_role("Viewer")
    batch.organization.store_prompts = False
    batch.organization.save()
    page = viewer.get(f"/admin/batches/{batch.pk}/results/", {"text": "needle"}).content.decode()
    assert "are not shown" in page
    assert "line-1" not in page
    assert numbers(viewer, batch, text="needle") == list(range(1, 51))
    for path in ("77/", "download/?format=csv"):
        assert viewer.get(f"/admin/batches/{batch.pk}/results/{path}").status_code == 404


def test_what_is_filtered_is_sent_again(in_role: Callable[[str], Client], batch: Batch) -> None:  # noqa: F811
    path = f"/admin/batches/{batch.pk}/results/resubmit/?status=failed"
    assert in_role("Viewer").post(path).status_code == 403
    assert not Batch.objects.filter(resubmission_of=batch.pk).exists()
    page = in_role("Operator").post(path, follow=True).content.decode()
    assert "sends lines of" in page, re.findall(r"Nothing was[^<]*", page)
    again = Batch.objects.get(resubmission_of=batch.pk)
    assert again.api_key == batch.api_key
    entry = AuditEntry.objects.get(action=AuditAction.USED)
    assert (entry.object_id, entry.actor[:6]) == (batch.api_key_id, "admin:")
    assert entry.changes == {"batch": [batch.id, again.id]}
    file = File.objects.get(id=again.input_file_id)
    with file.content.open("rb") as content:
        assert file.bytes == len(content.read())
        content.seek(0)
        sent = [json.loads(line)["custom_id"] for line in content]
    assert sent == [f"line-{n}" for n in range(10, 141, 10)]


def test_long_lines_are_read_one_by_one(
    batch: Batch, owner: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that searches, and a download, hold few of them in memory."""
    monkeypatch.setattr(search, "_MAX_BYTES", 1000)
    reads = []

    class Watched(Contents):
        def _read(self, file_id: str, place: int, size: int) -> bytes:
            reads.append(size)
            return super()._read(file_id, place, size)

    for backward in (False, True):
        with Watched(batch) as contents:
            start = 1000 if backward else 0
            found = list(search.iterate_matches(Criteria(), contents, start, backward))
        assert [json.loads(text or b"")["custom_id"] for _, text in found] == [
            f"line-{row.number}" for row, _ in found
        ]
        assert len(found) == 140
    assert max(reads) <= 1000


@pytest.mark.parametrize("limit", ["MAX_QUEUED_LINES", "MAX_STORED_BYTES"])
def test_lines_that_are_not_sent_again_leave_no_file(
    in_role: Callable[[str], Client],  # noqa: F811
    batch: Batch,
    owner: Tenant,
    settings: Settings,
    limit: str,
) -> None:
    setattr(settings, limit, 0)
    before = File.objects.count()
    path = f"/admin/batches/{batch.pk}/results/resubmit/?status=failed"
    page = in_role("Operator").post(path, follow=True).content.decode()
    assert "Nothing was sent." in page
    secret = {"authorization": f"Bearer {owner.secret}"}
    refused = Client(headers=secret).post(f"/v1/batches/{batch.pk}/resubmit")
    code = {"MAX_QUEUED_LINES": "batch_limit_exceeded"}.get(limit, "storage_limit_exceeded")
    assert refused.json()["error"]["code"] == code
    assert File.objects.count() == before
    assert not Batch.objects.filter(resubmission_of=batch.pk).exists()


def test_the_index_goes_with_the_file(batch: Batch) -> None:
    File.objects.get(id=batch.error_file_id).delete()
    assert set(BatchResult.objects.values_list("completed", flat=True)) == {True}


@pytest.mark.long
def test_fifty_thousand_lines(owner: Tenant, served: None, admin: Client) -> None:  # noqa: F811
    owner.organization.store_prompts = True
    owner.organization.save()
    owner.key.organization = owner.organization
    batch = ended_batch(owner.key, 50_000)
    admin.get(f"/admin/batches/{batch.pk}/results/")  # the first page also compiles templates
    for asked in (
        {},
        {"after": "49000"},
        {"status": "failed"},
        {"reason": "length"},
        {"text": "needle"},
        {"text": "green 4", "status": "completed"},
    ):
        with counted_operations() as operations:
            assert admin.get(f"/admin/batches/{batch.pk}/results/", asked).status_code == 200
        assert operations.count < 2_000_000, asked  # at most 440,000 of Python's lines


@pytest.mark.parametrize("text", ["", "line"])
def test_a_page_of_long_lines_has_fewer(
    batch: Batch, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(search, "_PAGE_BYTES", 2000)
    after, seen = 0, []
    with Contents(batch) as contents:
        while True:
            found = search.find_page(Criteria(text=text), contents, after, 50, 60.0)
            assert sum(len(output) for _, output in found.lines) <= 2000
            seen += [row.number for row, _ in found.lines]
            after = found.searched
            if not found.more:
                break
        assert seen == list(range(1, 141))
        monkeypatch.setattr(search, "_PAGE_BYTES", 1)
        found = search.find_page(Criteria(text=text), contents, 0, 50, 60.0)
        assert (len(found.lines), found.searched, found.more) == (1, 1, True)


def test_null_characters_are_refused(admin: Client) -> None:  # noqa: F811
    """PostgreSQL would answer with an error, and the page with a 500."""
    for path in ("/admin/batches/%00/results/", "/admin/completions/batch/a%00/change/"):
        assert admin.get(path).status_code == 404
    assert admin.get("/admin/completions/batch/?status__exact=%00").status_code == 400
    admin.cookies["sessionid"] = "longer\0key"  # sent as an escape, which Django reads
    assert admin.get("/admin/").status_code == 400


def test_a_file_that_is_being_written_is_not_opened(
    in_role: Callable[[str], Client],  # noqa: F811
    batch: Batch,
) -> None:
    """A killed writer leaves the index of its lines and a row without content."""
    File.objects.filter(id=batch.output_file_id).update(content="")
    viewer = in_role("Viewer")
    assert viewer.get(f"/admin/batches/{batch.pk}/results/").status_code == 200
    line = viewer.get(f"/admin/batches/{batch.pk}/results/77/").context["parts"]
    assert [bool(text) for _, text in line] == [True, False]
    page = viewer.get(f"/admin/completions/batch/{batch.pk}/change/").content.decode()
    assert batch.error_file_id in page
    assert f"/file/{batch.output_file_id}/" not in page
