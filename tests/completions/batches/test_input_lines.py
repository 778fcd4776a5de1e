"""Whoever reads an input file finds the same lines. A carriage return ends none of them: JSON takes
it for a space."""

import json
import tracemalloc

import pytest

from completions.batches.export.rows import open_source
from completions.batches.input_lines import LineError, parse
from completions.batches.receipts.source import read_receipted
from completions.batches.results import index
from completions.batches.results.search import Contents, Criteria, iterate_requests
from completions.models import Batch
from tests.completions.bench import jsonl
from tests.completions.bench import request as line_of

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


@pytest.fixture(params=["within", "twice at the end"])
def ended(request, bench):
    """A batch of three lines, the second of which failed. A system that translates line ends twice
    writes two carriage returns at each."""

    def written(custom_id, **body):
        text = json.dumps(line_of(custom_id, **body)).encode()
        if request.param == "within":
            return text.replace(b', "', b',\r"') + b"\n"
        return text + b"\r\r\n"

    sent = [written("a"), written("b", max_tokens=0), written("c").rstrip()]
    return bench.run_to_end(bench.create(sent, receipts=True))


def test_each_result_is_beside_its_request(ended):
    batch = Batch.objects.get(id=ended["id"])
    with Contents(batch) as contents:
        sent = [json.loads(text) for text in iterate_requests(Criteria(), contents)]
    assert [line["custom_id"] for line in sent] == ["a", "b", "c"]


def test_the_failed_line_runs_again(bench, ended):
    again = bench.post(f"/v1/batches/{ended['id']}/resubmit")
    assert again.status_code == 200, again.content
    done = bench.run_to_end(again.json())
    assert [line["custom_id"] for line in bench.lines(done["error_file_id"])] == ["b"]


def test_the_batch_is_exported(ended):
    found = open_source(Batch.objects.get(id=ended["id"]))
    rows = found.rows(found.columns())
    assert [row.values["custom_id"] for row in rows] == ["a", "b", "c"]


def test_receipts_find_their_requests(bench, ended, tmp_path):
    output = tmp_path / "out.jsonl"
    output.write_bytes(jsonl(bench.lines(ended["output_file_id"])))
    assert [line.custom_id for line in read_receipted(output, None)] == ["a", "c"]


@pytest.mark.wide
def test_blank_lines_take_no_memory(bench):
    """A file has room for 200 million of them."""
    blank = b"\n" * 300_000
    first, last = (json.dumps(line_of(name)).encode() for name in "ab")
    batch = Batch.objects.get(id=bench.create([first, b"\n", blank, last])["id"])
    tracemalloc.start()
    try:
        places = list(index._locate_lines(batch, [1, 300_002]))
        assert tracemalloc.get_traced_memory()[1] < 512 * 1024
    finally:
        tracemalloc.stop()
    assert places == [(0, len(first) + 1), (len(first) + 1 + len(blank), len(last))]


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\u2029"], ids=ascii)
def test_unicode_line_breaks_end_no_line_of_any_file(bench, character):
    """Neither of the input nor of what a client reads, which may end lines at each of them."""
    name = f"a{character}b"
    sent = [json.dumps(line_of(f"{name}{n}"), ensure_ascii=False).encode() + b"\n" for n in "12"]
    sent[1] = sent[1].replace(b'"max_tokens": 2', b'"max_tokens": 0')
    done = bench.run_to_end(bench.create(sent))
    assert [line["custom_id"] for line in bench.lines(done["output_file_id"])] == [f"{name}1"]
    assert [line["custom_id"] for line in bench.lines(done["error_file_id"])] == [f"{name}2"]
    again = bench.post(f"/v1/batches/{done['id']}/resubmit").json()
    assert [line["custom_id"] for line in bench.lines(again["input_file_id"])] == [f"{name}2"]


@pytest.mark.parametrize("text", ["\u2028", "\x85", "\xa0", "\x0b"], ids=ascii)
def test_only_json_whitespace_may_surround_a_line(text):
    line = f"{text}{json.dumps(line_of('a'))}".encode()
    with pytest.raises(LineError, match="Not valid JSON"):
        parse(line, "/v1/completions")
