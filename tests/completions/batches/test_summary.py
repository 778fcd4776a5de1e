"""What a batch's results have in common, while it runs and afterwards."""

import json
import random
import statistics
import tracemalloc

import pytest

from completions.batches.counted_fields import (
    MAX_FIELDS,
    find_counted_fields,
    find_truncated,
    read_counted_values,
)
from completions.batches.histogram import Histogram
from completions.batches.summary import MAX_NAMES, OTHERS, Summary
from completions.maintenance import tasks
from tests.completions.bench import request

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b", None]},
        "ok": {"type": "boolean"},
        "name": {"type": "string"},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}},
    },
    "$defs": {"part": {"properties": {"s/z": {"enum": [1, 2]}, "of": {"$ref": "#/$defs/part"}}}},
}


def line(text, finish_reason="stop", tokens=5, **meta):
    body = {
        "choices": [{"text": text, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 2, "completion_tokens": tokens},
    }
    return {"response": {"status_code": 200, "body": body}, "error": None, "meta": meta}


def test_values_of_enums_and_booleans_are_counted():
    summary = Summary(find_counted_fields(SCHEMA))
    summary.add(line('{"kind": "a", "ok": true, "name": "x", "parts": [{"s/z": 1}, {"s/z": 1}]}'))
    summary.add(line('{"kind": null, "ok": true}'))
    summary.add(line('{"kind": "a", "name": "y', "length"))
    again = Summary(find_counted_fields(SCHEMA), summary.as_dict()).as_summary()
    assert again == summary.as_summary()
    assert again["values"] == {
        "/kind": [{"value": "a", "count": 1}, {"value": None, "count": 1}],
        "/ok": [{"value": True, "count": 2}],
        "/parts/*/s~1z": [{"value": 1, "count": 2}],
    }
    assert (again["documents"], again["cut"]) == (2, {"/name": 1})
    assert again["finish_reasons"] == {"stop": 2, "length": 1}


def test_a_schema_without_end_is_watched_within_bounds():
    wide = {"properties": {str(n): {"type": "boolean"} for n in range(MAX_FIELDS + 9)}}
    assert len(find_counted_fields(wide)["children"]) == MAX_FIELDS
    itself = {"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}, "c": {"type": "boolean"}}}
    itself["$defs"] = {"x": itself}
    itself["properties"]["a"] = {"$ref": "#/$defs/x"}
    itself["properties"]["b"] = {"$ref": "#/$defs/x"}
    assert ("/c", "true") in list(read_counted_values({"c": True}, find_counted_fields(itself)))
    tree = {"properties": {"ok": {"type": "boolean"}, "inside": {"items": {"$ref": "#"}}}}
    assert find_counted_fields(tree)["children"].keys() == {"ok"}
    long = '{"a": "' + "b" * 100_000
    assert find_truncated(long) == find_truncated(long + "\\") == "/a"
    for odd in ({"properties": 3}, {"items": [True]}, {"enum": 4}, {"$ref": 5}, {"anyOf": 1}):
        assert find_counted_fields(odd) == {}


def test_only_values_of_the_schema_are_counted():
    either = {"anyOf": [{"enum": ["x", 1]}, {"type": ["null", "boolean"]}, {"type": "string"}]}
    watched = json.loads(json.dumps(find_counted_fields({"properties": {"a": either}})))
    values = ["x", "free text", 1, 2, True, None, {"b": 1}]
    counted = [each for value in values for each in read_counted_values({"a": value}, watched)]
    assert counted == [("/a", '"x"'), ("/a", "1"), ("/a", "true"), ("/a", "null")]


def test_an_enum_without_end_is_counted_whatever_it_says():
    watched = find_counted_fields({"enum": list(range(2000))})
    assert watched == {"counted": True}
    assert list(read_counted_values("any", watched)) == [("", '"any"')]


def test_what_waits_to_be_visited_is_bounded():
    many = {"anyOf": [{"type": "null"}] * 9000}
    schema = {"properties": {str(n): {"$ref": "#/$defs/many"} for n in range(900)}}
    tracemalloc.start()
    assert find_counted_fields(schema | {"$defs": {"many": many}}) == {}
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


def test_no_name_has_a_null_character_which_postgresql_refuses():
    names = {"a\0": {"type": "boolean"}, "b": {"type": "boolean"}}
    assert find_counted_fields({"properties": names}) == {
        "children": {"b": {"counted": ["true", "false"]}}
    }
    assert find_truncated('{"x\\u0000": "tr') == "/x\N{SYMBOL FOR NULL}"


def test_codes_without_end_share_a_name():
    summary = Summary(None)
    for number in range(MAX_NAMES + 5):
        error = {"code": f"c{number}", "message": ""}
        summary.add({"response": None, "error": error, "meta": {}})
    assert summary.as_summary()["errors"][OTHERS] == 5


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ("", ""),
        ("{", ""),
        ('{"a', ""),
        ('{"a": "b, {', "/a"),
        ('{"a": 1, "b": [{"c/d": 1}, {"c/d": "', "/b/*/c~1d"),
        ('{"a": {"b": 1}, "e', ""),
        (r'{"a\"": "x\\"', '/a"'),
        (r'{"a\q": [', r"/a\q/*"),
        (r'{"a\"', ""),
        ('{"a": 1}', ""),
    ],
)
def test_where_a_text_was_cut(text, pointer):
    assert find_truncated(text) == pointer


@pytest.mark.parametrize("seed", range(3))
def test_quantiles_are_within_a_bucket_of_the_truth(seed):
    chance = random.Random(seed)  # noqa: S311 - not for cryptography
    numbers = [chance.lognormvariate(1, 2) for _ in range(2000)]
    histogram = Histogram()
    for number in numbers:
        histogram.add(number)
    histogram = Histogram(histogram.as_dict())
    found = histogram.as_summary(6)
    truth = statistics.quantiles(numbers, n=100)
    for name, exact in (("p50", truth[49]), ("p90", truth[89]), ("p99", truth[98])):
        assert found[name] == pytest.approx(exact, rel=0.06)
    assert found["max"] == pytest.approx(max(numbers))
    assert found["mean"] == pytest.approx(statistics.mean(numbers))
    assert Histogram().as_summary(1) is None


@pytest.mark.integration
@pytest.mark.django_db(transaction=True)
def test_a_batch_has_its_summary_while_it_runs_and_afterwards(bench):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    good = [request(f"r{n}", json_schema=schema) for n in range(4)]
    batch = bench.create([*good, request("bad", max_tokens=0)])
    assert batch["summary"] is None
    bench.turn()
    assert bench.get(batch)["summary"]["errors"] == {"integer_below_min_value": 1}
    bench.turn()
    bench.worker.run(bench.sent.pop()[0], "failed", "worker_error")
    bench.work(1)
    tasks.settle()
    seen = bench.get(batch)["summary"]
    assert seen["errors"] == {"integer_below_min_value": 1, "worker_error": 1}
    assert seen["finish_reasons"] == {"length": 1}
    assert seen["completion_tokens"]["max"] == 2
    bench.post(f"/v1/batches/{batch['id']}/cancel")
    done = bench.run_to_end(batch)
    assert done["status"] == "cancelled"
    ended = done["summary"]
    assert sum(ended["errors"].values()) == done["request_counts"]["failed"]
    assert ended["finish_reasons"]["length"] == done["request_counts"]["completed"]
    assert ended["values"] == {}  # the worker writes no JSON
    assert ended["cut"] == {"": done["request_counts"]["completed"]}
    assert ended["run_seconds"]["p50"] <= ended["run_seconds"]["max"]


@pytest.mark.integration
@pytest.mark.django_db(transaction=True)
def test_values_are_counted_only_where_all_lines_share_the_schema(bench):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    same = bench.create([request("a", json_schema=schema), request("b", response_format=wrapped)])
    mixed = bench.create([request("a", json_schema=schema), request("b")])
    assert "values" in bench.run_to_end(same)["summary"]
    assert "values" not in bench.run_to_end(mixed)["summary"]
