"""The body of an ended job's request: accepted, and with the constraint that it had."""

from typing import Any

import msgspec
import pytest
from django.utils import timezone

from completions.admin.request_body import load_body
from completions.contract.job_request import JobRequest, encode_job_request
from completions.contract.json_lines import compress_lines
from completions.models import StoredPrompt, UsageRecord
from completions.models.organizations import Organization
from tests.completions.requests.validating import LEAST, prepared

pytestmark = pytest.mark.usefixtures("served")
CONSTRAINTS: list[dict[str, Any]] = [
    {"ebnf": 'root ::= "a" [b-z]{1,3} | "yes"'},
    {"ebnf": 'root ::= Token(5, 6) "x"'},
    {"regex": "[A-Z][a-z]+"},
    {
        "json_schema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
        }
    },
    {"json_schema": {"type": "array", "items": {"enum": [1, "b"]}}, "json_whitespace": "flexible"},
    {"response_format": {"type": "json_object"}},
    {"structural_tag": {"format": {"type": "any_text"}}},
    {"guided_choice": ["a", "b"]},
    {"grammar": {"type": "lark", "value": 'start: "a" %json {"type": "integer"}'}},
]


def body_of(request: JobRequest, **changes: str) -> dict[str, Any] | None:
    now = timezone.now()
    stored = StoredPrompt(
        job_id="cmpl-1", organization=Organization(), created_at=now,
        request=compress_lines([encode_job_request(request)]),
    )  # fmt: skip
    return load_body(stored, UsageRecord(**{"model": "tiny", **changes}))


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=str)
def test_the_constraint_is_carried(constraint: dict[str, Any]) -> None:
    first = prepared({**LEAST, **constraint}).job_request
    body = body_of(first)
    assert body is not None
    again = prepared(body).job_request
    assert again.grammar is not None
    assert again.report_constraint
    once_more = body_of(again)
    assert once_more is not None
    assert prepared(once_more).job_request.grammar == again.grammar  # nothing more is lost


def test_all_parameters_are_carried() -> None:
    body = {
        **LEAST, "max_tokens": 7, "min_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
        "min_p": 0.1, "presence_penalty": 0.1, "frequency_penalty": 0.2, "repetition_penalty": 1.1,
        "logit_bias": {"5": 1.5}, "dry_multiplier": 0.5, "seed": 9, "n": 2, "best_of": 3,
        "stop": ["~~~"], "stop_regex": ["~{3}"], "stop_token_ids": [7], "ignore_eos": True,
        "no_stop_trim": True, "skip_special_tokens": False, "allowed_token_ids": [1, 2],
    }  # fmt: skip
    first = prepared(body).job_request
    carried = body_of(first)
    assert carried is not None
    assert prepared(carried).job_request == first
    several = prepared({**LEAST, "prompt": [[1], [2, 3]]}).job_request
    carried = body_of(several, adapter="")
    assert carried is not None
    assert prepared(carried).job_request.prompts == ((1,), (2, 3))


def test_an_adapter_is_part_of_the_model() -> None:
    body = body_of(prepared(LEAST).job_request, adapter="polite")
    assert body is not None
    assert body["model"] == "tiny:polite"


def test_what_has_no_such_body() -> None:
    scored = prepared({**LEAST, "continuation_token_ids": [[3]]}).job_request
    assert body_of(scored) is None
    assert body_of(msgspec.structs.replace(scored, prompts=())) is None
