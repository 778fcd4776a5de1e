"""Requests whose answers are to be closed: refused where no end fits, before a queue."""

from pathlib import Path

import orjson
import pytest
from pytest_django.fixtures import Settings

from completions.contract.job_request import encode_job_request
from completions.exceptions import APIError
from completions.grammars.lengths import LeastTokens
from completions.grammars.validation import validator
from tests.completions.requests.validating import LEAST, prepared

pytestmark = pytest.mark.usefixtures("served")
CONSTANT = {**LEAST, "regex": "a{14}"}


def test_the_job_asks_for_it_only_under_a_constraint() -> None:
    closing = prepared({**CONSTANT, "close": True, "max_tokens": 14})
    assert closing.request.ignored == ()
    assert closing.job_request.close is True
    assert closing.context.closes is True
    assert closing.context.meta_info is True
    free = prepared({**LEAST, "close": True})
    assert free.job_request.close is False
    assert "close" in free.request.ignored
    assert b"close" not in orjson.dumps(
        orjson.loads(encode_job_request(prepared(CONSTANT).job_request))
    )


def test_a_model_decides_where_the_request_does_not(tiny_model: Path, settings: Settings) -> None:
    with settings.MODELS_FILE.open("a") as document:
        document.write(f'[models.whole]\npath = "{tiny_model}"\nclose = true\n')
    body = {**CONSTANT, "model": "whole", "max_tokens": 14}
    assert prepared(body).job_request.close is True
    assert prepared({**body, "close": False}).job_request.close is False


@pytest.mark.parametrize("least", [2, 9])
def test_a_limit_below_the_least_length_is_refused(least: int) -> None:
    body = {**LEAST, "ebnf": f'root ::= "{"x9" * least}"', "close": True}
    needed = 2 * least
    prepared({**body, "max_tokens": needed})
    with pytest.raises(APIError) as refused:
        prepared({**body, "max_tokens": needed - 1})
    assert refused.value.param == "max_tokens"
    assert f"at least {needed} tokens; max_tokens is {needed - 1}" in str(refused.value)


@pytest.mark.parametrize(
    ("least", "message"),
    [
        (LeastTokens(0, None), None),
        (LeastTokens(3, 50), "needs 50 tokens; max_tokens is 20"),
        (LeastTokens(60, None), "needs at least 60 tokens"),
    ],
)
def test_what_is_not_known_is_not_refused(
    monkeypatch: pytest.MonkeyPatch, least: LeastTokens, message: str | None
) -> None:
    monkeypatch.setattr(validator, "find_least", lambda *_: least)
    body = {**LEAST, "regex": "b+", "close": True, "max_tokens": 20}
    if message is None:
        admitted = prepared(body)
        assert admitted.job_request.close is True
        assert "close" in admitted.request.ignored
        return
    with pytest.raises(APIError) as refused:
        prepared(body)
    assert message in str(refused.value)


def test_a_costly_constraint_is_searched_in_a_process_that_can_be_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> LeastTokens:
        raise AssertionError("no thread of the service searches it")

    monkeypatch.setattr(validator, "find_least", refuse)
    lark = {"type": "lark", "value": 'start: "ab" | "abc"'}
    body = {**LEAST, "grammar": lark, "close": True}
    assert prepared({**body, "max_tokens": 2}).request.ignored == ()
    with pytest.raises(APIError) as refused:
        prepared({**body, "max_tokens": 1})
    assert "needs at least 2 tokens" in str(refused.value)
