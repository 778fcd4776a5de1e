"""A job's request as another version may have written it: understood, or refused with a word."""

import json

import pytest

from completions.contract.stop_spans import StopSpan
from tests.workers.relay.bench import SAMPLING
from workers.engine.request import LogprobParams, Request
from workers.engine.sampling.params import SamplingParams
from workers.payload import logprob_params, request_params, sampling_params

PAYLOAD = {"prompts": [[1, 2]], "sampling": SAMPLING, "grammar": None}


def test_wishes_per_prompt():
    assert logprob_params(None) == logprob_params([]) == ()
    sent = json.loads('[null, {}, {"top_logprobs_num": 2, "token_ids_logprob": [3, 4]}]')
    assert logprob_params(sent) == (
        None,
        LogprobParams(),
        LogprobParams(2, token_ids_logprob=(3, 4)),
    )


def test_sampling_parameters_of_a_payload():
    sent = json.loads('{"logit_bias": {"5": 1.5}, "stop": ["x"], "stop_regex": ["a+"], "seed": 3}')
    expected = SamplingParams(logit_bias={5: 1.5}, stop=("x",), stop_regex=("a+",), seed=3)
    assert sampling_params(sent) == expected


def test_spans_without_stops():
    sent = json.loads('{"stop_spans": [["<a>", "</a>", true, "; "], ["", "</b>"]]}')
    expected = (StopSpan("<a>", "</a>", True, "; "), StopSpan("", "</b>"))
    assert sampling_params(sent).stop_spans == expected


def test_what_an_older_version_does_not_say_yet_has_its_default():
    request = Request("job", **request_params({"prompts": [[1, 2]], "sampling": {}}))
    assert request.prompts == ((1, 2),)
    assert request.sampling == SamplingParams()


def test_whole_numbers_are_numbers():
    assert sampling_params({"temperature": 1, "logit_bias": {"5": -1}}).temperature == 1


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
                ([["<a>", 5, False, ""]], "closing"),
                ([["<a>", "</a>", 1, ""]], "is_json"),
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
def test_what_cannot_be_understood_is_named(changes, word):
    with pytest.raises(ValueError, match=word):
        request_params({**PAYLOAD, **changes})


@pytest.mark.parametrize("missing", ["prompts", "sampling"])
def test_what_must_be_there(missing):
    with pytest.raises(ValueError, match=missing):
        request_params({name: value for name, value in PAYLOAD.items() if name != missing})


@pytest.mark.parametrize("payload", [None, [], "{}", 7])
def test_a_payload_is_an_object(payload):
    with pytest.raises(ValueError, match="object"):
        request_params(payload)
