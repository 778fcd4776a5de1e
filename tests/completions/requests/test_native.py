"""Bodies of other engines' own routes: what they become, and errors that name their fields."""

from typing import Any

import pytest

from completions.exceptions import APIError
from completions.requests.preparation import PreparedRequest
from tests.completions.conftest import TINY_CONTEXT
from tests.completions.requests.validating import prepared

pytestmark = pytest.mark.usefixtures("served")
SGLANG, VLLM = "/generate", "/inference/v1/generate"
LEAST = {SGLANG: {"input_ids": [1, 2]}, VLLM: {"token_ids": [1, 2], "sampling_params": {}}}


def make(route: str, params: Any = None, **fields: Any) -> PreparedRequest:
    body = {"model": "tiny", **LEAST[route], **fields}
    return prepared(body if params is None else {**body, "sampling_params": params}, route)


def refusal(route: str, params: Any = None, **fields: Any) -> tuple[str | None, str]:
    with pytest.raises(APIError) as caught:
        make(route, params, **fields)
    return caught.value.param, caught.value.message


def test_names_of_sglang_become_those_of_a_completion() -> None:
    params = {"max_new_tokens": 3, "min_new_tokens": 2, "sampling_seed": 7, "stop": "x", "n": 2}
    made = make(SGLANG, params, return_logprob=True, logprob_start_len=0, top_logprobs_num=2)
    sampling = made.job_request.sampling
    assert (sampling.max_tokens, sampling.min_tokens, sampling.seed) == (3, 2, 7)
    assert (sampling.stop, sampling.n) == (("x",), 2)
    assert made.job_request.logprobs is not None
    assert made.context.location == f"/v1/completions/{made.context.id}"


def test_lengths_are_those_of_each_engine() -> None:
    assert make(VLLM).job_request.sampling.max_tokens == TINY_CONTEXT - 2
    assert make(VLLM).context.default_length
    assert make(VLLM, {"max_tokens": 3}).job_request.sampling.max_tokens == 3
    long = [1] * (TINY_CONTEXT + 50)
    cut = make(VLLM, {"truncate_prompt_tokens": 10}, token_ids=long)
    assert cut.job_request.sampling.max_tokens == TINY_CONTEXT - 10
    assert len(cut.job_request.prompts[0]) == 10
    short = make(VLLM, {"truncate_prompt_tokens": 10})
    assert short.job_request.sampling.max_tokens == TINY_CONTEXT - 2
    filled = make(VLLM, {"truncate_prompt_tokens": -1}, token_ids=long).job_request
    assert (len(filled.prompts[0]), filled.sampling.max_tokens) == (TINY_CONTEXT - 1, 1)
    param, message = refusal(SGLANG)  # the small model has no room for 128
    assert (param, "128 in the completion" in message) == ("input_ids", True)


@pytest.mark.parametrize(
    ("route", "params", "fields", "param"),
    [
        (SGLANG, {"max_new_tokens": "3"}, {}, "sampling_params.max_new_tokens"),
        (SGLANG, {"max_new_tokens": 2, "min_new_tokens": 3}, {}, "sampling_params.min_new_tokens"),
        (SGLANG, {"max_new_tokens": 2, "regex": "("}, {}, "sampling_params.regex"),
        (SGLANG, {"max_new_tokens": 2, "regex": "a", "ebnf": "b"}, {}, "sampling_params.regex"),
        (SGLANG, {"stop_regex": ["("]}, {}, "sampling_params.stop_regex[0]"),
        (SGLANG, {"max_tokens": 3}, {}, "sampling_params.max_tokens"),
        (SGLANG, [{}], {}, "sampling_params"),
        (SGLANG, {"max_new_tokens": 1}, {"text": "a", "model": "texts"}, "input_ids"),
        (SGLANG, {"max_new_tokens": 1}, {"input_ids": None}, "input_ids"),
        (SGLANG, {"max_new_tokens": 1}, {"input_ids": [[1], [-1]]}, "input_ids[1][0]"),
        (SGLANG, None, {"image_data": "a.png"}, "image_data"),
        (SGLANG, None, {"return_hidden_states": True}, "return_hidden_states"),
        (SGLANG, None, {"temperature": 1}, "temperature"),
        (SGLANG, {"max_new_tokens": 1}, {"lora_path": "nobody"}, "lora_path"),
        (
            SGLANG,
            {"max_new_tokens": 1},
            {"return_logprob": True, "logprob_start_len": 9},
            "logprob_start_len",
        ),
        (VLLM, {}, {"token_ids": []}, "token_ids"),
        (VLLM, {}, {"token_ids": [[1]]}, "token_ids"),
        (VLLM, {}, {"token_ids": [10**6]}, "token_ids[0]"),
        (VLLM, {"structured_outputs": {"regex": "("}}, {}, "sampling_params.structured_outputs"),
        (VLLM, {"max_tokens": 0}, {}, "sampling_params.max_tokens"),
        (VLLM, {"ignore_eos": True}, {}, "sampling_params.max_tokens"),
        (VLLM, {"output_kind": 1}, {}, "sampling_params.output_kind"),
        (VLLM, {}, {"priority": 1}, "priority"),
        (VLLM, {}, {"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        (VLLM, {}, {"features": {"a": 1}}, "features"),
    ],
)
def test_an_error_names_the_field_of_the_route(
    route: str, params: Any, fields: dict[str, Any], param: str
) -> None:
    found, message = refusal(route, params, **fields)
    assert found is not None
    assert found == param or found.startswith(f"{param}.")
    assert message.startswith(found)


def test_what_has_no_effect_is_named() -> None:
    assert make(VLLM, {"detokenize": False}).context.ignored_params == (
        "sampling_params.detokenize",
    )
    alone = make(SGLANG, {"max_new_tokens": 1, "custom_params": {"a": 1}}, top_logprobs_num=1)
    assert alone.context.ignored_params == ("sampling_params.custom_params", "top_logprobs_num")
