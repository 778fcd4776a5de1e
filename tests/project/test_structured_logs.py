"""Log lines: JSON with the fields of the request they were written for."""

import contextvars
import io
import json
import logging
import logging.config

import pytest
from structlog.contextvars import bound_contextvars

from completions.exceptions import APIError
from completions.http import access_log
from completions.jobs.execute import Claim
from project import structured_logs
from workers.live_job import EngineLines


@pytest.fixture
def lines(monkeypatch):
    """A logger of this test alone, and what it has written."""
    written = io.StringIO()
    configuration = structured_logs.make_configuration("INFO", "json")
    formatter = logging.config.DictConfigurator(configuration).configure_formatter(
        configuration["formatters"]["line"]
    )
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter)
    logger = logging.getLogger("tests.lines")
    monkeypatch.setattr(logger, "propagate", False)
    logger.setLevel("INFO")
    logger.addHandler(handler)
    yield logger, handler, lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    logger.removeHandler(handler)


def test_a_line_is_one_json_object(lines):
    logger, _, read = lines
    with bound_contextvars(request_id="req_1"):
        logger.info("two\nlines of %s", "text", extra={"job_id": "cmpl-1"})
    (line,) = read()
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "message": "two\nlines of text",
        "level": "info",
        "logger": "tests.lines",
        "job_id": "cmpl-1",
        "request_id": "req_1",
    }


@pytest.mark.parametrize("value", ["\x85", "\u2028", "\u2029"], ids=ascii)
def test_no_character_of_a_value_ends_its_line(lines, value):
    logger, _, read = lines
    logger.info("a %s value", value, extra={"value": value})
    (line,) = read()
    assert (line["message"], line["value"]) == (f"a {value} value", value)


def test_a_traceback_is_part_of_its_line(lines):
    logger, _, read = lines
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it failed")
    (line,) = read()
    assert "ValueError: why" in line["exception"]


def test_the_query_of_a_failed_request_is_not_logged(lines, rf):
    """It may be the code of a sign-in, or what an operator searches for."""
    logger, _, read = lines
    logger.error("failed", extra={"request": rf.get("/admin/oidc/callback/?code=secret")})
    (line,) = read()
    assert line["request"] == "GET /admin/oidc/callback/"


@pytest.mark.parametrize("value", ["half a pair: \ud800", 10**30])
def test_no_value_loses_its_line(lines, value):
    logger, _, read = lines
    logger.error("a value", extra={"value": value})
    (line,) = read()
    assert line["value"] == value


def test_what_is_noted_deep_inside_is_in_the_access_line():
    def answer(request_id, job_id):
        facts = access_log.begin(request_id)
        contextvars.copy_context().run(access_log.note, job_id=job_id)  # as in a task of its own
        return facts

    for number in "12":
        facts = contextvars.copy_context().run(answer, f"req_{number}", f"cmpl-{number}")
        assert facts == {"request_id": f"req_{number}", "job_id": f"cmpl-{number}"}
    access_log.note(job_id="nobody's")


@pytest.mark.parametrize(
    ("param", "logged"),
    [
        ("max_token", "max_token"),
        ("messages[0].content[2].type", "messages[0].content[2].type"),
        (None, None),
        ("what a client keeps to itself", None),
        ("x" * 101, None),
    ],
)
def test_a_refusal_names_the_parameter_but_no_text_of_clients(param, logged):
    def answer():
        facts = access_log.begin("req_1")
        access_log.note_error(APIError("unknown_parameter", "no such thing", param))
        return facts

    facts = contextvars.copy_context().run(answer)
    assert facts["code"] == "unknown_parameter"
    assert facts.get("param") == logged


def test_the_engines_lines_get_the_request_that_they_speak_of(lines):
    logger, handler, read = lines
    claim = Claim("cmpl-1", 1, b"{}", 60.0, 1, request_id="req_1")
    handler.addFilter(EngineLines({"cmpl-1": claim}.get))
    logger.error("request %s failed", "cmpl-1", extra={"engine_request": "cmpl-1"})
    logger.error("request %s failed", "cmpl-2", extra={"engine_request": "cmpl-2"})
    logger.info("something else")
    first, second, third = read()
    assert (first["job_id"], first["request_id"]) == ("cmpl-1", "req_1")
    assert (second["job_id"], "request_id" in second) == ("cmpl-2", False)
    assert "job_id" not in third
    assert all("engine_request" not in line for line in (first, second, third))


def test_a_path_cannot_speak_to_a_terminal(caplog):
    with caplog.at_level(logging.INFO, "quire.access"):
        access_log.write("GET", "/v1/\x1b[2Jé\n", 404, 0.1, {})
        access_log.write("GET", "/v1/größe", 404, 0.1, {})
    assert [record.getMessage() for record in caplog.records] == [
        r"GET /v1/\x1b[2J\xe9\n 404",
        "GET /v1/größe 404",
    ]


def test_a_path_does_not_fill_the_log(caplog):
    with caplog.at_level(logging.INFO, "quire.access"):
        access_log.write("GET", "/v1/" + "x" * 60_000, 404, 0.1, {})
    assert len(caplog.records[0].getMessage()) < 600
    assert len(caplog.records[0].path) < 600


def test_a_wrong_host_is_logged_without_a_traceback(client, settings, capsys):
    settings.ALLOWED_HOSTS = ["localhost"]
    logging.config.dictConfig(structured_logs.make_configuration("INFO", "json"))
    try:
        assert client.get("/admin/login/", headers={"host": "evil.example"}).status_code == 400
    finally:
        logging.config.dictConfig(settings.LOGGING)
    (line,) = [json.loads(each) for each in capsys.readouterr().err.splitlines()]
    assert "You may need to add 'evil.example' to ALLOWED_HOSTS" in line["message"]
    assert "exception" not in line
