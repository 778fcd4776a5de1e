"""A job's request as another version may have written it: understood, or refused with a word."""

import json
from typing import Any

import msgspec
import pytest

from completions.contract.job_request import (
    JobRequest,
    LogprobParams,
    decode_job_request,
    encode_job_request,
)
from completions.contract.sampling import SamplingParams
from completions.contract.stop_spans import StopSpan

DOCUMENT = {"prompts": [[1, 2]], "sampling": {"n": 1, "logit_bias": {"5": 1.5}}, "grammar": None}


def decode(**fields: Any) -> JobRequest:
    return decode_job_request(json.dumps({**DOCUMENT, **fields}).encode())


def test_what_is_encoded_is_decoded() -> None:
    sampling = SamplingParams(
        logit_bias={5: 1.5}, stop=("x",), stop_regex=("a+",), seed=2**63 - 1, custom_params={"a": 1}
    )
    request = JobRequest(
        ((1, 2), (3,)),
        sampling,
        'start: "a"',
        priority=-3,
        adapters=("polite", None),
        logprobs=(None, LogprobParams(top_logprobs_num=2, token_ids_logprob=(3, 4))),
        return_hidden_states=True,
    )
    assert decode_job_request(encode_job_request(request)) == request
    stored = msgspec.to_builtins(request, str_keys=True)
    assert msgspec.convert(json.loads(json.dumps(stored)), JobRequest, str_keys=True) == request


def test_defaults_are_left_out() -> None:
    """A worker of an earlier version accepts what does not use a newer field."""
    assert encode_job_request(JobRequest(((1, 2),))) == b'{"prompts":[[1,2]],"sampling":{}}'


def test_what_is_asked_of_each_prompt() -> None:
    assert decode(logprobs=None).logprobs is None
    assert decode(logprobs=[None, {}, {"top_logprobs_num": 2}]).logprobs == (
        None,
        LogprobParams(),
        LogprobParams(top_logprobs_num=2),
    )


def test_stop_spans() -> None:
    sampling = {"stop_spans": [["<a>", "</a>", True, "; "], ["", "</b>"]]}
    expected = (StopSpan("<a>", "</a>", True, "; "), StopSpan("", "</b>"))
    assert decode(sampling=sampling).sampling.stop_spans == expected


def test_what_an_older_version_does_not_write_yet_has_its_default() -> None:
    assert decode_job_request(b'{"prompts": [[1, 2]]}') == JobRequest(((1, 2),), SamplingParams())


def test_whole_numbers_are_numbers() -> None:
    assert decode(sampling={"temperature": 1}).sampling.temperature == 1


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"prompts": None}, "prompts"),
        ({"prompts": 7}, "prompts"),
        ({"prompts": [7]}, "prompts"),
        ({"prompts": [["7"]]}, "prompts"),
        ({"prompts": [[7.0]]}, "prompts"),
        ({"prompts": [[True]]}, "prompts"),
        ({"sampling": None}, "sampling"),
        ({"sampling": "greedy"}, "sampling"),
        ({"sampling": {"of_another_version": 1}}, "of_another_version"),
        ({"sampling": {"max_tokens": "5"}}, "max_tokens"),
        ({"sampling": {"max_tokens": None}}, "max_tokens"),
        ({"sampling": {"max_tokens": -1}}, "max_tokens"),
        ({"sampling": {"n": 1.5}}, "n"),
        ({"sampling": {"seed": "x"}}, "seed"),
        ({"sampling": {"ignore_eos": 1}}, "ignore_eos"),
        *[
            ({"sampling": {"stop_spans": spans}}, word)
            for spans, word in [
                (5, "stop_spans"),
                ([5], "stop_spans"),
                ([["<a>"]], "stop_spans"),
                ([["<a>", "", False, ""]], "stop_spans"),
                ([["<a>", 5, False, ""]], "stop_spans"),
                ([["<a>", "</a>", 1, ""]], "stop_spans"),
            ]
        ],
        ({"sampling": {"logit_bias": [5]}}, "logit_bias"),
        ({"sampling": {"logit_bias": {"five": 1}}}, "logit_bias"),
        ({"sampling": {"logit_bias": {"5": "1"}}}, "logit_bias"),
        ({"sampling": {"stop": "x"}}, "stop"),
        ({"sampling": {"stop": [5]}}, "stop"),
        ({"sampling": {"stop_regex": [5]}}, "stop_regex"),
        ({"sampling": {"stop_token_ids": 9}}, "stop_token_ids"),
        ({"grammar": 5}, "grammar"),
        ({"priority": "high"}, "priority"),
        ({"adapters": [5]}, "adapters"),
        ({"adapters": "polite"}, "adapters"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": [3]}, "logprobs"),
        ({"logprobs": [{"of_another_version": 1}]}, "of_another_version"),
        ({"logprobs": [{"top_logprobs_num": "2"}]}, "top_logprobs_num"),
        ({"logprobs": [{"top_logprobs_num": 99}]}, "top_logprobs_num"),
        ({"of_another_version": 1}, "of_another_version"),
        ({"request_id": "job"}, "request_id"),
    ],
)
def test_what_cannot_be_understood_is_named(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        decode(**changes)


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ("null", "object"),
        ("[]", "object"),
        ("7", "object"),
        ("{no json", "malformed"),
        ("", "truncated"),
        ("{}", "no prompts"),
    ],
)
def test_a_request_is_an_object_with_prompts(document: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        decode_job_request(document.encode())


def test_an_unknown_task_is_refused_by_name() -> None:
    assert b"task" not in encode_job_request(JobRequest(((1,),)))
    with pytest.raises(ValueError, match=r"\$\.task"):
        decode_job_request(b'{"prompts": [[1]], "task": "embed"}')
