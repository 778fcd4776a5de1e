"""The table of errors: every code that the source names is in it, and it is consistent."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from completions.accounts.keys import Refusal
from completions.contract.error_codes import ERRORS
from completions.exceptions import APIError, from_job_error
from completions.grammars.exceptions import ERRORS as GRAMMAR_ERRORS

ROOT = Path(__file__).resolve().parents[3]
CODE_ARGUMENTS = {"APIError": 0, "JobError": 0, "LineError": 0, "FieldError": 2}
"""Where each maker of an error takes the code."""


def codes_in(source: Path) -> Iterator[str]:
    """The literal codes with which a file makes errors."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        made = node.func if isinstance(node, ast.Call) else None
        if isinstance(made, ast.Name) and made.id in CODE_ARGUMENTS:
            named = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            for code in (*node.args[CODE_ARGUMENTS[made.id] :][:1], *named):
                if isinstance(code, ast.Constant) and isinstance(code.value, str):
                    yield code.value


@pytest.mark.wide
def test_every_code_in_the_source_is_in_the_table() -> None:
    sources = [
        path
        for room in ("completions", "project", "workers")
        for path in (ROOT / room).rglob("*.py")
    ]
    named = {code: path for path in sources for code in codes_in(path)}
    assert len(named) > 40
    assert {code: path for code, path in named.items() if code not in ERRORS} == {}
    assert {refusal.value for refusal in Refusal} <= ERRORS.keys()
    assert GRAMMAR_ERRORS.keys() <= ERRORS.keys()


def test_every_code_in_the_scripts_is_in_the_table() -> None:
    scripts = "".join(path.read_text() for path in (ROOT / "completions/jobs/lua").rglob("*.lua"))
    codes = set(re.findall(r"finalize_here\(\w+, 'failed', '(\w+)'", scripts))
    assert {"worker_error", "queue_timeout", "generation_timeout"} <= codes <= ERRORS.keys()


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_what_the_table_says(name: str) -> None:
    kind, error = ERRORS[name], APIError(name)
    assert 400 <= error.status_code < 600
    assert error.status_code == kind.status
    assert error.envelope()["error"] == {
        "message": kind.message,
        "type": kind.type,
        "param": None,
        "code": kind.code or name,
    }
    assert kind.message.endswith((".", "..."))
    assert error.headers == dict(kind.headers)


def test_an_error_has_its_own_message_and_headers() -> None:
    error = APIError("model_loading", "Soon.", "model", headers={"Retry-After": "60"})
    assert error.envelope()["error"] == {
        "message": "Soon.",
        "type": "server_error",
        "param": "model",
        "code": "model_loading",
    }
    assert error.headers == {"Retry-After": "60"}
    assert APIError("model_loading").headers == {"Retry-After": "5"}


@pytest.mark.parametrize(
    ("code", "status", "reported", "retry", "detailed"),
    [
        ("queue_timeout", 504, "queue_timeout", "true", False),
        ("generation_timeout", 504, "generation_timeout", "false", False),
        ("worker_error", 500, "worker_error", None, False),
        ("something_new", 500, "worker_error", None, False),
        ("internal_error", 500, "internal_error", None, False),
        ("processor_error", 500, "processor_error", "false", True),
        ("invalid_logits", 500, "invalid_logits", "false", False),
        ("grammar_error", 400, "grammar_error", None, True),
        ("invalid_grammar", 400, "invalid_grammar", None, True),
        ("invalid_value", 400, "invalid_value", None, True),
        ("context_length_exceeded", 400, "context_length_exceeded", None, True),
    ],
)
def test_errors_of_jobs(
    code: str, status: int, reported: str, retry: str | None, detailed: bool
) -> None:
    error = from_job_error(code, "the worker's words")
    assert (error.status_code, error.code) == (status, reported)
    assert error.headers.get("x-should-retry") == retry
    assert (error.message == "the worker's words") == detailed
    assert from_job_error(code).message
