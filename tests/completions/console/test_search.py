"""The search through results: what it finds, how long it reads, and how much at once."""

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from completions.batches import lines
from completions.batches.results import search
from completions.batches.results.search import Contents, Criteria
from completions.models import Batch
from tests.completions.conftest import Tenant
from tests.completions.console.batch_of_results import ended_batch

pytestmark = pytest.mark.usefixtures("fake_process", "folder")


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
