"""The results of a batch in the admin: filtered, paged, opened and downloaded."""

import csv
import io
import json
import math
import re
from collections.abc import Callable
from html import unescape
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pyarrow.parquet as pq
import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from django.utils.html import escape

from completions.accounts import changes
from completions.accounts.audit import Actor
from completions.console import results
from completions.models import Batch, BatchResult, File
from tests.completions.conftest import Tenant
from tests.completions.console.batch_of_results import ended_batch, is_cut
from tests.operations import counted_operations

pytestmark = pytest.mark.usefixtures("fake_process", "folder")


_SECONDS = results.SECONDS


@pytest.fixture(autouse=True)
def _any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page searches to its end, however slow this machine is at the moment."""
    monkeypatch.setattr(results, "SECONDS", math.inf)


def numbers(client: Client, batch: Batch, **asked: Any) -> list[int]:
    page = client.get(f"/admin/batches/{batch.pk}/results/", asked).content.decode()
    return [int(found) for found in re.findall(r'<tr data-number="(\d+)"', page)]


def failed(number: int) -> bool:
    return number % 10 == 0


def test_filters(in_role: Callable[[str], Client], batch: Batch) -> None:
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


def test_a_line_is_beside_its_request(in_role: Callable[[str], Client], batch: Batch) -> None:
    response = in_role("Viewer").get(f"/admin/batches/{batch.pk}/results/77/")
    facts = dict(response.context["facts"])
    assert facts["custom_id"] == "line-77"
    sent, output = (json.loads(text) for _, text in response.context["parts"])
    assert sent["custom_id"] == output["custom_id"] == "line-77"
    assert output["response"]["body"]["choices"][0]["finish_reason"] == "length"
    assert escape(response.context["parts"][1][1]) in response.content.decode()


@pytest.mark.wide
def test_lines_are_turned_one_by_one(in_role: Callable[[str], Client], batch: Batch) -> None:
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


@pytest.mark.represented_by("asked0")
@pytest.mark.parametrize("asked", [{}, {"status": "failed"}])
def test_pages_are_turned_there_and_back(
    in_role: Callable[[str], Client],
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


def test_each_property_has_a_column(in_role: Callable[[str], Client], reviewed: Batch) -> None:
    page = in_role("Viewer").get(f"/admin/batches/{reviewed.pk}/results/")
    assert [column.name for column in page.context["columns"]] == ["mood", "stars"]
    rows = {row["number"]: row for row in page.context["rows"]}
    assert (rows[4]["cells"], rows[4]["rest"]) == (["bad", "4"], "")
    assert (rows[7]["cells"], rows[7]["rest"]) == (["", ""], '{"mood": "ba')
    assert (rows[10]["cells"], rows[10]["reason"]) == (["", ""], "worker_error")
    assert rows[10]["rest"] == '{"mood": "bad", "stars": 10}'  # the error's message


def test_the_counts_of_the_summary_open_their_lines(
    in_role: Callable[[str], Client],
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


def test_results_that_became_visible_later_say_so(
    in_role: Callable[[str], Client], batch: Batch
) -> None:
    viewer, path = in_role("Viewer"), f"/admin/batches/{batch.pk}/results/"
    assert "became visible" not in viewer.get(path).content.decode()
    for on in (False, True):
        batch.organization.store_prompts = on
        changes.change(batch.organization, ["store_prompts"], Actor.from_shell())
        assert ("became visible" in viewer.get(path).content.decode()) == on


def test_a_value_that_the_summary_lacks(
    in_role: Callable[[str], Client],
    reviewed: Batch,
) -> None:
    path = f"/admin/batches/{reviewed.pk}/results/?value=%2Fmood%3D%22great%22"
    assert in_role("Viewer").get(path).status_code == 404


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
def test_what_is_filtered_is_downloaded_in_each_format(
    in_role: Callable[[str], Client],
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
    in_role: Callable[[str], Client],
    reviewed: Batch,
) -> None:
    viewer = in_role("Viewer")
    path = f"/admin/batches/{reviewed.pk}/results/download/"
    assert viewer.get(path, {"format": "xlsx"}).status_code == 404
    File.objects.filter(pk=reviewed.input_file_id).delete()
    page = viewer.get(path, {"format": "csv"}, follow=True).content.decode()
    assert "Nothing was exported: the input file of" in page


def test_texts_are_shown_where_the_organization_lets_them(
    in_role: Callable[[str], Client],
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


def test_the_index_goes_with_the_file(batch: Batch) -> None:
    File.objects.get(id=batch.error_file_id).delete()
    assert set(BatchResult.objects.values_list("completed", flat=True)) == {True}


@pytest.mark.long
def test_fifty_thousand_lines(
    open_owner: Tenant, served: None, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "SECONDS", _SECONDS)
    batch = ended_batch(open_owner.key, 50_000)
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


def test_null_characters_are_refused(admin: Client) -> None:
    """PostgreSQL would answer with an error, and the page with a 500."""
    for path in ("/admin/batches/%00/results/", "/admin/completions/batch/a%00/change/"):
        assert admin.get(path).status_code == 404
    assert admin.get("/admin/completions/batch/?status__exact=%00").status_code == 400
    admin.cookies["sessionid"] = "longer\0key"  # sent as an escape, which Django reads
    assert admin.get("/admin/").status_code == 400


def test_a_file_that_is_being_written_is_not_opened(
    in_role: Callable[[str], Client],
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
