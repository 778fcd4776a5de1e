"""Every bad line is named by its number. A refused body ends its own line, or the whole file."""

import json

import pytest
from django.db import OperationalError

from completions.batches import input_lines, validation
from completions.batches.lines import decompress_job
from completions.contract.job_request import decode_job_request
from completions.exceptions import APIError
from completions.jobs.rids import BatchRids
from completions.jobs.store import JobStore
from completions.models import Batch, BatchLine, File
from completions.requests import preparation
from tests.completions.bench import PREFIX, request
from tests.completions.checking import shared_validator

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


def faults(bench, requests, **options):
    batch = bench.create(requests, **options)
    bench.turn()
    seen = bench.get(batch)
    assert seen["status"] == "failed"
    assert not bench.sent
    assert not BatchLine.objects.exists()
    return seen


def fault(bench, line, **options):
    """Validate a file with this second line. Returns the only fault, which is in that line."""
    seen = faults(bench, [request("first"), line], **options)
    assert seen["errors"]["object"] == "list"
    (error,) = seen["errors"]["data"]
    assert error["line"] == 2
    assert error["message"]
    return error["code"], error["param"]


SENSELESS = [
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
    # PostgreSQL takes no U+0000, and would hold up all batches with it.
    ({**request("x"), "ex\0tra": 1}, ("unknown_parameter", "ex␀tra")),
]
REFUSED = [
    ({**request("x"), "body": []}, ("invalid_type", "body")),
    (request("x", prompt=[999]), ("invalid_token_id", "body.prompt[0]")),
    (request("x", prompt="text"), ("text_prompt_not_supported", "body.prompt")),
    (request("x", model="nobody"), ("model_not_found", "body.model")),
    (request("x", max_tokens=0), ("integer_below_min_value", "body.max_tokens")),
    (request("x", stream=True), ("invalid_request", "body.stream")),
    (request("x", background=True), ("invalid_request", "body.background")),
    (request("x", regex="("), ("invalid_grammar", "body.regex")),
    (request("x", regex="a" + "{999999999}" * 500), ("invalid_grammar", "body.regex")),
    (
        request("x", json_schema={"enum": [1], "$ref": f"#/enum/{'1' * 5000}"}),
        ("invalid_grammar", "body.json_schema"),
    ),
    (request("x", colour="red"), ("unknown_parameter", "body.colour")),
    (request("x", **{"col\0our": "red"}), ("unknown_parameter", "body.col␀our")),
]


def test_a_model_that_takes_texts_takes_them_in_lines(bench):
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/completions",
         "body": {"model": "texts", "prompt": prompt, "max_tokens": 2}}
        for n, prompt in enumerate(("hello", ["a", "b"], [65]))
    ]  # fmt: skip
    batch = bench.create(lines)
    bench.turn()
    assert bench.get(batch)["status"] == "in_progress"
    jobs = [decompress_job(row.job) for row in BatchLine.objects.order_by("number")]
    assert [len(job.request.prompts) for job in jobs] == [1, 2, 1]
    assert len(jobs[0].request.prompts[0]) > 1


@pytest.mark.represented_by("[]\\n-expected1", "line4-expected4")
@pytest.mark.parametrize(("line", "expected"), SENSELESS)
def test_an_invalid_line_fails_the_file(bench, line, expected):
    assert fault(bench, line) == expected


@pytest.mark.represented_by("line0-expected0", "line1-expected1")
@pytest.mark.parametrize(("line", "expected"), REFUSED)
def test_a_refused_body_fails_the_file_where_that_is_wanted(bench, line, expected):
    assert fault(bench, line, on_invalid="fail") == expected


def test_a_refused_body_ends_its_own_line_and_the_others_run(bench):
    refused = [{**line, "custom_id": f"bad{n}"} for n, (line, _) in enumerate(REFUSED)]
    batch = bench.create([*refused[:5], request("good"), *refused[5:]])
    bench.turn()
    seen = bench.get(batch)
    counts = {"total": len(refused) + 1, "completed": 0, "failed": len(refused)}
    assert (seen["status"], seen["request_counts"]) == ("in_progress", counts)
    assert len(bench.lines(seen["error_file_id"])) == len(refused)  # before the others end
    done = bench.run_to_end(batch)
    assert done["status"] == "completed"
    assert done["request_counts"] == {**counts, "completed": 1}
    assert [line["custom_id"] for line in bench.lines(done["output_file_id"])] == ["good"]
    found = bench.lines(done["error_file_id"])
    assert [line["custom_id"] for line in found] == [line["custom_id"] for line in refused]
    for line, request_line, (_, (code, param)) in zip(found, refused, REFUSED, strict=True):
        response = line["response"]
        assert (line["error"], line["meta"]) == (None, {"attempts": 0})
        error = response["body"]["error"]
        # A file that fails has a symbol in place of U+0000, because SQL keeps its errors as text.
        shown = (error["param"] or "").replace("\0", "␀")
        assert (error["code"], shown) == (code, param[len("body.") :])
        if code not in ("invalid_request", "invalid_type"):  # a live body may have these
            sent = json.dumps(request_line["body"])
            live = bench.api.post("/v1/completions", sent, content_type="application/json")
            assert (response["status_code"], response["body"]) == (live.status_code, live.json())


def test_a_file_of_refused_lines_completes_without_an_output_file(bench):
    batch = bench.create([request("a", max_tokens=0), request("b", colour="red")])
    done = bench.run_to_end(batch)
    assert (done["status"], done["output_file_id"], done["model"]) == ("completed", None, None)
    assert done["request_counts"] == {"total": 2, "completed": 0, "failed": 2}


def test_a_line_without_sense_counts_the_refused_lines_as_no_faults(bench):
    (error,) = faults(bench, [request("a", max_tokens=0), b"{\n"])["errors"]["data"]
    assert (error["line"], error["code"]) == (2, "invalid_json_line")


def test_the_header_asks_for_a_failing_file_too(bench):
    file = bench.upload([request("a", max_tokens=0)])
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}

    def created(fields, header):
        return bench.api.post(
            "/v1/batches", json.dumps({**body, **fields}), content_type="application/json",
            headers={"X-On-Invalid": header},
        )  # fmt: skip

    assert created({}, "fail").json()["on_invalid"] == "fail"
    assert created({"on_invalid": "skip"}, "fail").json()["on_invalid"] == "skip"
    refused = created({}, "explode")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-On-Invalid")


def test_a_line_names_what_has_no_effect_as_the_live_header_does(bench):
    loose = {"type": "object", "properties": {"a": {"type": "string", "format": "unheard-of"}}}
    batch = bench.create([request("a", user="me", json_schema=loose), request("b")])
    done = bench.run_to_end(batch)
    named, plain = bench.lines(done["output_file_id"])
    assert named["meta"]["ignored_params"] == ["user", "json_schema#/properties/a/format"]
    assert "ignored_params" not in plain["meta"]


def test_all_bad_lines_are_in_the_error_file_and_the_first_in_the_object(bench, monkeypatch):
    monkeypatch.setattr(validation, "SHOWN_ERRORS", 3)
    monkeypatch.setattr(input_lines, "MAX_GROUP_LINES", 2)
    requests = [request(f"r{n}", max_tokens=n % 2) for n in range(1, 11)]
    seen = faults(bench, requests, on_invalid="fail")
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
    assert fault(bench, request("z", rid="once"), on_invalid="fail")[1] == "body.rid"
    again = bench.post(f"/v1/batches/{batch['id']}/resubmit").json()
    assert bench.run_to_end(again)["request_counts"]["completed"] == 1
    assert fault(bench, request("z", rid="once"), on_invalid="fail")[1] == "body.rid"


def test_ids_of_a_refused_file_are_free_again(bench):
    lines = [request("a", rid="mine"), request("b", rid="mine")]
    (error,) = faults(bench, lines, on_invalid="fail")["errors"]["data"]
    assert (error["line"], error["param"]) == (2, "body.rid")
    done = bench.run_to_end(bench.create(lines[:1]))
    assert done["request_counts"]["completed"] == 1


def test_ids_are_free_after_an_interrupted_and_then_refused_validation(bench, monkeypatch):
    lines = [request("a", rid="mine"), request("b", rid="mine")]
    batch = bench.create(lines, on_invalid="fail")
    with monkeypatch.context() as patch:
        patch.setattr(BatchRids, "free", lambda _: 1 / 0)  # it is killed before
        bench.turn()
    assert bench.get(batch)["status"] == "validating"
    bench.turn()
    assert bench.get(batch)["status"] == "failed"
    done = bench.run_to_end(bench.create(lines[:1]))
    assert done["request_counts"]["completed"] == 1


def test_ids_are_free_after_a_resubmission_that_found_no_room(bench, owner):
    batch = bench.create([request("x", rid="once")])
    bench.run_to_end(batch, state="failed", error="worker_error")
    path = f"/v1/batches/{batch['id']}/resubmit"
    type(owner.key).objects.update(max_enqueued_tokens=0)
    refused = bench.run_to_end(bench.post(path).json())
    assert refused["errors"]["data"][0]["code"] == "token_limit_exceeded"
    assert fault(bench, request("z", rid="once"), on_invalid="fail")[1] == "body.rid"
    type(owner.key).objects.update(max_enqueued_tokens=None)
    assert bench.run_to_end(bench.post(path).json())["request_counts"]["completed"] == 1


def test_an_input_file_that_is_gone(bench):
    batch = bench.create([request("a")])
    File.objects.all().delete()
    bench.turn()
    (error,) = bench.get(batch)["errors"]["data"]
    assert error["code"] == "file_not_found"


def test_an_interrupted_validation_begins_anew(bench, monkeypatch):
    monkeypatch.setattr(input_lines, "MAX_GROUP_LINES", 2)
    batch = bench.create([request(f"r{n}", rid=f"rid-{n}") for n in range(6)])
    found = Batch.objects.get(id=batch["id"])
    answers = iter([True, True, False])
    rids = BatchRids(JobStore(bench.client, PREFIX), found.api_key_id)
    with pytest.raises(validation.InterruptedValidationError):
        validation.validate(found, shared_validator(), lambda: next(answers), rids)
    assert BatchLine.objects.count() == 4
    done = bench.run_to_end(batch)
    assert done["request_counts"] == {"total": 6, "completed": 6, "failed": 0}


def test_a_fault_of_the_service_is_not_the_lines(bench, monkeypatch):
    batch = bench.create([request("a", model="absent")])  # in models.toml, but without its files
    bench.turn()
    assert bench.get(batch)["status"] == "validating"  # and is tried again


def _judged_with_a_bug(monkeypatch):
    async def judge(*_constraint):
        raise ValueError("a bug of ours")

    monkeypatch.setattr(preparation, "validate_grammar", judge)


def test_an_unexpected_exception_ends_its_own_line_and_the_others_run(bench, monkeypatch, caplog):
    _judged_with_a_bug(monkeypatch)
    done = bench.run_to_end(bench.create([request("a"), request("b", regex="b"), request("c")]))
    assert done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    (line,) = bench.lines(done["error_file_id"])
    assert (line["custom_id"], line["response"]["status_code"]) == ("b", 500)
    assert line["response"]["body"] == APIError("internal_error").envelope()
    (logged,) = (each for each in caplog.records if "line 2" in each.getMessage())
    assert "a bug of ours" in str(logged.exc_info[1])


def test_an_unexpected_exception_fails_the_file_where_that_is_wanted(bench, monkeypatch):
    _judged_with_a_bug(monkeypatch)
    assert fault(bench, request("x", regex="b"), on_invalid="fail") == ("internal_error", "body")


def test_a_database_that_is_away_is_no_fault_of_a_line(bench, monkeypatch):
    async def judge(*_constraint):
        raise OperationalError

    monkeypatch.setattr(preparation, "validate_grammar", judge)
    batch = bench.create([request("a", regex="a")])
    bench.turn()
    assert bench.get(batch)["status"] == "validating"  # and is tried again


def test_a_file_whose_constraints_take_too_long_fails(bench, settings):
    settings.BATCH_GRAMMAR_SECONDS = 0.0
    lines = [request(str(number), regex=f"[ab]{{1,{40 + number}}}") for number in range(8)]
    batch = bench.create(lines)
    bench.turn()
    done = bench.get(batch)
    assert done["status"] == "failed"
    (error,) = done["errors"]["data"]
    assert error["code"] == "grammar_budget_exceeded"
    assert error["line"] > 1
    assert "one file may take 0. Split the file" in error["message"]


def test_equal_constraints_are_checked_once(bench, settings):
    settings.BATCH_GRAMMAR_SECONDS = 60.0
    lines = [request(str(number), regex="[cd]{1,50}") for number in range(8)]
    assert bench.run_to_end(bench.create(lines))["request_counts"]["completed"] == 8


def test_a_machine_that_is_overloaded_for_a_while_delays_a_line_only(bench, monkeypatch):
    monkeypatch.setattr(preparation, "OFFLINE_SECONDS", 0)
    prepare, tries = preparation.prepare, []

    async def overloaded(*line):
        tries.append(line)
        if len(tries) < 3:
            raise APIError("server_overloaded")
        return await prepare(*line)

    monkeypatch.setattr(preparation, "prepare", overloaded)
    done = bench.run_to_end(bench.create([request("a"), request("b")]))
    assert done["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    assert len(tries) == 4


def test_a_batch_closes_the_lines_that_do_not_say(bench, redis_client):
    lines = [
        request("batch", regex="a{3}b?", max_tokens=9),
        request("line", regex="a{3}b?", max_tokens=9, close=False),
        request("free"),
    ]
    batch = bench.create(lines, close=True)
    bench.turn()
    seen = bench.get(batch)
    assert (seen["close"], seen["status"]) == (True, "in_progress"), seen
    stored = [redis_client.hget(f"{PREFIX}job:{job_id}", "request") for job_id, _, _ in bench.sent]
    assert sorted(decode_job_request(document).close for document in stored) == [False, False, True]
