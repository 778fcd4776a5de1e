"""Every bad line of a file is named by its number, and none of a bad file runs."""

import json

import pytest

from completions.batches import validation
from completions.jobs.rids import BatchRids
from completions.models import Batch, BatchLine, File
from tests.completions.batches.conftest import PREFIX, request

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


def faults(bench, requests, status="failed"):
    batch = bench.create(requests)
    bench.turn()
    seen = bench.get(batch)
    assert seen["status"] == status
    assert not bench.sent
    assert not BatchLine.objects.exists()
    return seen


def fault(bench, line):
    """The one fault of a file whose second line this is."""
    seen = faults(bench, [request("first"), line])
    assert seen["errors"]["object"] == "list"
    (error,) = seen["errors"]["data"]
    assert error["line"] == 2
    assert error["message"]
    return error["code"], error["param"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{\n", ("invalid_json_line", None)),
        (b"[]\n", ("invalid_json_line", None)),
        (b'{"a": 1, "a": 2}\n', ("invalid_json_line", None)),
        (b"\xff\n", ("invalid_json_line", None)),
        ({"method": "POST"}, ("missing_required_parameter", "custom_id")),
        ({**request("x"), "extra": 1}, ("unknown_parameter", "extra")),
        (request(""), ("invalid_value", "custom_id")),
        (request("x" * 513), ("invalid_value", "custom_id")),
        ({**request("x"), "custom_id": 7}, ("invalid_value", "custom_id")),
        (request("a\0"), ("invalid_value", "custom_id")),
        (request("first"), ("duplicate_custom_id", "custom_id")),
        ({**request("x"), "method": "GET"}, ("invalid_value", "method")),
        (request("x", url="/v1/embeddings"), ("url_mismatch", "url")),
        ({**request("x"), "body": []}, ("invalid_type", "body")),
        (request("x", prompt=[999]), ("invalid_token_id", "body.prompt[0]")),
        (request("x", prompt="text"), ("text_prompt_not_supported", "body.prompt")),
        (request("x", model="nobody"), ("model_not_found", "body.model")),
        (request("x", model="org/slashed"), ("model_mismatch", "body.model")),
        (request("x", max_tokens=0), ("integer_below_min_value", "body.max_tokens")),
        (request("x", stream=True), ("invalid_request", "body.stream")),
        (request("x", background=True), ("invalid_request", "body.background")),
        (request("x", regex="("), ("invalid_grammar", "body.regex")),
        (request("x", colour="red"), ("unknown_parameter", "body.colour")),
        # PostgreSQL takes no U+0000, and would hold up all batches with it.
        (request("x", **{"col\0our": "red"}), ("unknown_parameter", "body.col␀our")),
        ({**request("x"), "ex\0tra": 1}, ("unknown_parameter", "ex␀tra")),
    ],
)
def test_a_bad_line_is_named(bench, line, expected):
    assert fault(bench, line) == expected


def test_all_bad_lines_are_in_the_error_file_and_the_first_in_the_object(bench, monkeypatch):
    monkeypatch.setattr(validation, "SHOWN_ERRORS", 3)
    monkeypatch.setattr(validation, "LINES_AT_ONCE", 2)
    requests = [request(f"r{n}", max_tokens=n % 2) for n in range(1, 11)]
    seen = faults(bench, requests)
    assert [error["line"] for error in seen["errors"]["data"]] == [2, 4, 6]
    assert seen["failed_at"]
    assert seen["output_file_id"] is None
    everything = bench.lines(seen["error_file_id"])
    assert [error["line"] for error in everything] == [2, 4, 6, 8, 10]
    assert everything[:3] == seen["errors"]["data"]


@pytest.mark.parametrize(("content", "code"), [(b"", "empty_file"), (b"\n  \n", "empty_file")])
def test_an_empty_file(bench, content, code):
    (error,) = faults(bench, [content])["errors"]["data"]
    assert (error["code"], error["line"]) == (code, None)


def test_too_many_lines(bench, settings):
    settings.MAX_BATCH_LINES = 3
    (error,) = faults(bench, [request(str(n)) for n in range(4)])["errors"]["data"]
    assert (error["code"], error["line"]) == ("too_many_tasks", None)


def test_a_line_longer_than_a_body_may_be(bench, settings):
    settings.MAX_BODY_BYTES = 1000
    long = request("x", user="u" * 900)
    (error,) = faults(bench, [request("a"), long])["errors"]["data"]
    assert (error["code"], error["line"]) == ("line_too_long", 2)


def test_blank_lines_a_mark_and_a_missing_last_break_are_no_fault(bench):
    text = json.dumps(request("ä")).encode()
    batch = bench.create([b"\xef\xbb\xbf" + text + b"\r\n\n", json.dumps(request("b")).encode()])
    done = bench.run_to_end(batch)
    assert done["request_counts"]["completed"] == 2
    assert [line["custom_id"] for line in bench.lines(done["output_file_id"])] == ["ä", "b"]


def test_callers_own_ids_are_taken_by_lines_too(bench):
    batch = bench.create([request("x", rid="once")])
    assert bench.run_to_end(batch, state="failed", error="worker_error")["status"] == "completed"
    assert fault(bench, request("z", rid="once")) == ("invalid_value", "body.rid")
    again = bench.post(f"/v1/batches/{batch['id']}/resubmit").json()
    assert bench.run_to_end(again)["request_counts"]["completed"] == 1
    assert fault(bench, request("z", rid="once")) == ("invalid_value", "body.rid")


def test_ids_of_a_refused_file_are_free_again(bench):
    lines = [request("a", rid="mine"), request("b", rid="mine")]
    (error,) = faults(bench, lines)["errors"]["data"]
    assert (error["line"], error["param"]) == (2, "body.rid")
    done = bench.run_to_end(bench.create(lines[:1]))
    assert done["request_counts"]["completed"] == 1


def test_an_input_file_that_is_gone(bench):
    batch = bench.create([request("a")])
    File.objects.all().delete()
    bench.turn()
    (error,) = bench.get(batch)["errors"]["data"]
    assert error["code"] == "file_not_found"


def test_an_interrupted_validation_begins_anew(bench, monkeypatch):
    monkeypatch.setattr(validation, "LINES_AT_ONCE", 2)
    batch = bench.create([request(f"r{n}", rid=f"rid-{n}") for n in range(6)])
    found = Batch.objects.get(id=batch["id"])
    answers = iter([True, True, False])
    rids = BatchRids(bench.client, PREFIX, found.api_key_id)
    with pytest.raises(validation.InterruptedValidationError):
        validation.validate(found, lambda: next(answers), rids)
    assert BatchLine.objects.count() == 4
    done = bench.run_to_end(batch)
    assert done["request_counts"] == {"total": 6, "completed": 6, "failed": 0}


def test_a_fault_of_the_service_is_not_the_lines(bench, monkeypatch):
    batch = bench.create([request("a", model="absent")])  # in models.toml, but without its files
    bench.turn()
    assert bench.get(batch)["status"] == "validating"  # and is tried again


def test_prompts_sort_by_their_beginnings():
    key = validation.prefix_key
    common = list(range(64))
    assert key([1, 2, 3]) == key([]) == ""
    assert key([*common, 1]) == key([*common, 2])
    assert key([*common, *range(32)]).startswith(key(common))
    assert key([*range(1, 33)]) != key([*range(32)])
    assert len(key(list(range(10_000)))) == 64
