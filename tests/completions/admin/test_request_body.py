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


def body_of(request: JobRequest, events: bytes | None = None, **changes: str) -> Any:
    now = timezone.now()
    stored = StoredPrompt(
        job_id="cmpl-1", organization=Organization(), created_at=now,
        request=compress_lines([encode_job_request(request)]), events=events,
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


MORE: list[dict[str, Any]] = [
    {"bad_words": ["one two", "three"]},
    {"cache_salt": "mine", "priority": -3},
    {"seed": 2**62 + 1, "return_token_ids": True},
    {"logprobs": 0},
    {"logprobs": 3, "echo": True},
    {"logprobs": 2, "logprobs_mode": "processed"},
    {"prompt_logprobs": 2},
    {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0},
    {"token_ids_logprob": [3, 4], "return_text_in_logprobs": True},
    {"prompt": [[1], [2]], "return_logprob": [True, False], "top_logprobs_num": [2, 0]},
    {"return_sampling_support": True, "sampling_support_ids": 4},
]


@pytest.mark.parametrize("more", MORE, ids=str)
def test_what_the_answer_shows_is_carried(more: dict[str, Any]) -> None:
    first = prepared({**LEAST, **more})
    carried = body_of(first.job_request, compress_lines([first.context.to_json()]))
    again = prepared(carried)
    assert again.job_request == first.job_request
    own = {"id", "created", "grammar_compile_ms", "default_length"}
    shown = [
        {
            name: value
            for name, value in msgspec.to_builtins(each.context).items()
            if name not in own
        }
        for each in (first, again)
    ]
    assert shown[0] == shown[1]


def test_scored_continuations_are_carried() -> None:
    body = {**LEAST, "continuation_token_ids": [[3], [4, 5]], "logprobs": 1}
    first = prepared(body)
    carried = body_of(first.job_request, compress_lines([first.context.to_json()]))
    assert {**carried, "continuation_token_ids": body["continuation_token_ids"]} == body
    assert prepared(carried).job_request.continuations == first.job_request.continuations


def test_what_a_chats_answer_shows_is_carried() -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "logprobs": True}
    chat = prepared({**body, "top_logprobs": 2, "max_tokens": 5}, "/v1/chat/completions")
    carried = body_of(chat.job_request, compress_lines([chat.context.to_json()]))
    assert carried["logprobs"] == 2
    assert prepared(carried).job_request == chat.job_request


def test_an_adapter_is_part_of_the_model() -> None:
    body = body_of(prepared(LEAST).job_request, adapter="polite")
    assert body is not None
    assert body["model"] == "tiny:polite"


def test_what_has_no_such_body() -> None:
    request = prepared(LEAST).job_request
    assert body_of(msgspec.structs.replace(request, prompts=())) is None
