"""The rules between fields, and the resulting job."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import structs

from completions.contract.sampling import SamplingParams
from completions.exceptions import APIError
from completions.grammars import Constraint
from completions.requests.completion import CompletionRequestObject
from completions.requests.fields.logprobs import LogprobSettings
from completions.requests.fields.returns import ReturnSettings, StreamOptions
from completions.requests.generation import GenerationRequest
from tests.completions.conftest import TINY_CONTEXT
from tests.completions.requests.validating import (
    ANYONE,
    LEAST,
    prepared,
    refusal,
    validate,
)

pytestmark = pytest.mark.usefixtures("served")


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 10**4000},
        {"min_tokens": 10**4000},
        {"max_tokens": 10**4000, "max_completion_tokens": 3},
        {"return_logprob": True, "logprob_start_len": 10**4000},
        {"nothing" * 10_000: 1},
        {"model": "tiny:" + "a" * 100_000},
    ],
)
def test_a_refusal_repeats_little_of_what_is_long(fields: dict[str, Any]) -> None:
    for principal in (ANYONE, replace(ANYONE, allowed_models=("other",))):
        with pytest.raises(APIError) as caught:
            validate({**LEAST, **fields}, principal)
        assert len(caught.value.message) < 300


def test_the_least_body_gets_the_documented_defaults() -> None:
    request = validate(LEAST)
    model = request.model
    assert (model.name, model.entry.id, model.adapter) == ("tiny", "tiny", None)
    assert request.job.prompts == ((1, 2),)
    assert (request.truncated_tokens, request.echo, request.constraint) == (0, False, None)
    assert (request.default_length, request.chat, request.ignored) == (True, None, ())
    assert request.job.sampling == SamplingParams(
        max_tokens=16,
        min_tokens=0,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        logit_bias={},
        dry_multiplier=0.0,
        dry_base=1.75,
        dry_allowed_length=2,
        dry_sequence_breakers=("\n", ":", '"', "*"),
        custom_logit_processor=None,
        custom_params={},
        n=1,
        best_of=None,
        seed=request.job.sampling.seed,
        stop=(),
        stop_regex=(),
        stop_token_ids=(),
        stop_spans=(),
        ignore_eos=False,
        no_stop_trim=False,
        skip_special_tokens=True,
        spaces_between_special_tokens=True,
    )
    assert request.returns == ReturnSettings(
        stream=False,
        stream_options=StreamOptions(),
        background=False,
        return_token_ids=False,
        return_meta_info=False,
        return_cached_tokens_details=False,
    )
    assert request.logprobs == LogprobSettings(
        sglang=None, return_text=False, top=None, of_prompt=False
    )
    job = request.job
    assert (job.adapters, job.priority, job.cache_salt, request.rid) == (None, 0, "key:1", None)
    assert (job.return_hidden_states, job.return_routed_experts) == (False, False)
    assert job.routed_experts_start_len == 0


def seeded(request: GenerationRequest) -> GenerationRequest:
    return request.change_job(sampling=structs.replace(request.job.sampling, seed=0))


def test_null_means_the_default() -> None:
    nulls = dict.fromkeys(CompletionRequestObject().fields.keys() - LEAST.keys())
    assert seeded(validate({**LEAST, **nulls})) == seeded(validate(LEAST))


def test_stream_options() -> None:
    options = {"include_usage": True}
    request = validate({**LEAST, "stream": True, "stream_options": options})
    assert request.returns.stream_options == StreamOptions(include_usage=True)
    body = {**LEAST, "stream": True, "stream_options": {"include_obfuscation": 1}}
    assert refusal(body) == ("invalid_type", "stream_options.include_obfuscation")


@pytest.mark.parametrize("field", ["model", "prompt"])
@pytest.mark.parametrize("absent", ["missing", "null"])
def test_required_fields(field: str, absent: str) -> None:
    body = {**LEAST, field: None}
    if absent == "missing":
        del body[field]
    assert refusal(body) == ("missing_required_parameter", field)


def test_unknown_parameters_suggest_the_nearest_name() -> None:
    with pytest.raises(APIError, match=r"max_token: .* Did you mean max_tokens\?") as caught:
        validate({**LEAST, "max_token": 1})
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", "max_token")
    assert refusal({**LEAST, "x" * 1000: 1}) == ("unknown_parameter", "x" * 64)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("sampling_params", "top level"),
        ("max_new_tokens", "max_tokens"),
        ("text", "prompt"),
        ("input_ids", "prompt"),
        ("messages", "/v1/chat/completions"),
    ],
)
def test_names_of_other_systems_get_advice(name: str, advice: str) -> None:
    """The error for a name of another route or server says what to send instead."""
    with pytest.raises(APIError, match=f"{name}: not supported here.*{advice}") as caught:
        validate({**LEAST, name: "x"})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)


BANNED = {"custom_logit_processor": "disallowed_tokens"}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"best_of": 2, "n": 3}, "invalid_value", "best_of"),
        ({"best_of": 2, "stream": True}, "invalid_value", "best_of"),
        ({"best_of": 3, "n": 2, "stream": True}, "invalid_value", "best_of"),
        ({"best_of": 129}, "integer_above_max_value", "best_of"),
        ({"best_of": 128, "prompt": [[1]] * 9}, "integer_above_max_value", "best_of"),
        ({"dry_multiplier": -1}, "decimal_below_min_value", "dry_multiplier"),
        ({"dry_base": 0}, "decimal_below_min_value", "dry_base"),
        ({"dry_allowed_length": -1}, "integer_below_min_value", "dry_allowed_length"),
        ({"dry_allowed_length": 2**31}, "integer_above_max_value", "dry_allowed_length"),
        ({"dry_sequence_breakers": [""]}, "invalid_value", "dry_sequence_breakers[0]"),
        ({"dry_sequence_breakers": ["a"] * 65}, "array_above_max_length", "dry_sequence_breakers"),
        ({"dry_sequence_breakers": [3]}, "invalid_type", "dry_sequence_breakers[0]"),
        ({"custom_logit_processor": "nobody"}, "invalid_value", "custom_logit_processor"),
        (
            {"custom_logit_processor": '{"callable": "80"}'},
            "unsupported_value",
            "custom_logit_processor",
        ),
        ({**BANNED, "custom_params": {"__a": 1}}, "invalid_value", "custom_params.__a"),
        ({**BANNED, "custom_params": {"a": 2**64}}, "invalid_value", "custom_params"),
        ({**BANNED, "custom_params": {"a": [[1]]}}, "invalid_value", "custom_params.a"),
        ({**BANNED, "custom_params": {"a": {"b": {}}}}, "invalid_value", "custom_params.a"),
        ({**BANNED, "custom_params": {"a": "x" * 2**14}}, "invalid_value", "custom_params"),
    ],
)
def test_refused_best_of_dry_and_processors(fields: dict[str, Any], code: str, param: str) -> None:
    assert refusal({**LEAST, **fields}) == (code, param)


def test_as_many_candidates_as_choices_may_stream() -> None:
    for n in (1, 2):
        request = validate({**LEAST, "best_of": n, "n": n, "stream": True})
        assert (request.returns.stream, request.job.sampling.best_of) == (True, n)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"custom_params": {"a": 1}}, ("custom_params",)),
        ({"top_logprobs_num": 2, "token_ids_logprob": [5]}, ("top_logprobs_num",)),
        ({"logprob_start_len": 9000}, ("logprob_start_len",)),
        ({"return_logprob": False, "top_logprobs_num": 2}, ("top_logprobs_num",)),
        ({"routed_experts_start_len": 1}, ("routed_experts_start_len",)),
        ({"user": "a", "custom_params": {}}, ("user", "custom_params")),
        ({"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}, ()),
        ({"token_ids_logprob": [5], "logprob_start_len": 0}, ()),
    ],
)
def test_a_field_without_the_one_it_belongs_to_is_named(fields: Any, names: Any) -> None:
    request = validate({**LEAST, **fields})
    assert request.ignored == names
    if names:
        alone = validate({**LEAST, **{k: v for k, v in fields.items() if k not in names}})
        assert seeded(replace(request, ignored=alone.ignored)) == seeded(alone)


def test_a_field_without_effect_is_still_checked() -> None:
    assert refusal({**LEAST, "top_logprobs_num": 21}) == (
        "integer_above_max_value",
        "top_logprobs_num",
    )
    assert refusal({**LEAST, "custom_params": {"__a": 1}}) == (
        "invalid_value",
        "custom_params.__a",
    )


def test_the_first_error_in_field_order_is_reported() -> None:
    body = {"n": 0, "temperature": "hot", "prompt": [999], "model": "tiny"}
    assert refusal(body) == ("invalid_type", "temperature")
    assert refusal({**body, "model": "none"}) == ("model_not_found", "model")


def test_no_tokens_are_generated_only_for_an_echo() -> None:
    body = {**LEAST, "max_tokens": 0}
    assert refusal(body) == ("integer_below_min_value", "max_tokens")
    assert validate({**body, "echo": True}).job.sampling.max_tokens == 0
    states = {**body, "echo": True, "return_hidden_states": True}
    assert refusal(states) == ("invalid_value", "return_hidden_states")
    full = {**body, "echo": True, "prompt": [1] * TINY_CONTEXT}
    assert len(validate(full).job.prompts[0]) == TINY_CONTEXT
    beyond = {**full, "prompt": [1] * (TINY_CONTEXT + 1)}
    assert refusal(beyond) == ("context_length_exceeded", "prompt")


def test_max_completion_tokens_is_max_tokens() -> None:
    assert validate({**LEAST, "max_completion_tokens": 5}).job.sampling.max_tokens == 5
    both = {**LEAST, "max_completion_tokens": 5, "max_tokens": 5}
    assert validate(both).job.sampling.max_tokens == 5
    assert refusal({**both, "max_tokens": 6}) == ("invalid_value", "max_completion_tokens")


def test_truncation_keeps_the_tail() -> None:
    long = [*range(100), *range(100)]
    body = {**LEAST, "truncate_sequence": True}
    request = validate({**body, "prompt": [[1], long], "max_tokens": 28})
    assert request.job.prompts == ((1,), tuple(long[-100:]))
    assert request.truncated_tokens == 100
    request = validate({**body, "prompt": long, "max_tokens": 5000})
    assert (request.job.prompts, request.job.sampling.max_tokens) == (((99,),), TINY_CONTEXT - 1)


def test_truncation_bounds_the_length() -> None:
    """Limits and budgets count max_tokens, and a job holds 64-bit integers."""
    body = {**LEAST, "truncate_sequence": True, "max_tokens": 10**30}
    assert prepared(body).job_request.sampling.max_tokens == TINY_CONTEXT - 1
    bounded = prepared({**body, "min_tokens": TINY_CONTEXT}).job_request.sampling
    assert bounded.min_tokens == TINY_CONTEXT - 1
    short = {**body, "max_tokens": 2, "min_tokens": 3}
    assert refusal(short) == ("invalid_value", "min_tokens")


def test_tools_are_named_as_ignored_when_none_may_be_called() -> None:
    body = {**LEAST, "tool_choice": "none", "tools": [{"type": "function"}], "user": "me"}
    assert validate(body).ignored == ("user", "tools", "tool_choice")


def test_ignore_eos_needs_max_tokens() -> None:
    assert refusal({**LEAST, "ignore_eos": True}) == ("missing_required_parameter", "max_tokens")
    for name in ("max_tokens", "max_completion_tokens"):
        assert validate({**LEAST, "ignore_eos": True, name: 4}).job.sampling.ignore_eos


def test_choices_of_a_batch_are_bounded() -> None:
    assert validate({**LEAST, "prompt": [[1]] * 8, "n": 128}).job.sampling.n == 128
    body = {**LEAST, "prompt": [[1]] * 9, "n": 128}
    assert refusal(body) == ("integer_above_max_value", "n")


def test_context_length() -> None:
    fits = [1] * (TINY_CONTEXT - 16)
    assert validate({**LEAST, "prompt": fits})
    assert refusal({**LEAST, "prompt": [*fits, 1]}) == ("context_length_exceeded", "prompt")
    assert refusal({**LEAST, "prompt": [[1], [*fits, 1]]})[0] == "context_length_exceeded"
    body = {**LEAST, "prompt": [1] * TINY_CONTEXT, "max_tokens": 1}
    assert refusal(body) == ("context_length_exceeded", "prompt")
    with pytest.raises(APIError) as caught:
        validate({**LEAST, "prompt": [[1], fits], "max_tokens": 17})
    assert caught.value.message == (
        f"This model's maximum context length is {TINY_CONTEXT} tokens. However, you requested "
        f"{TINY_CONTEXT + 1} tokens ({TINY_CONTEXT - 16} in prompt 1, 17 in the completion). "
        "Please reduce the length of the prompt or completion."
    )


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"ebnf": "x"}, Constraint("ebnf", "x")),
        ({"ebnf": "", "regex": "x"}, Constraint("regex", "x")),
        ({"json_schema": {}}, Constraint("json_schema", {})),
        ({"json_schema": "", "response_format": {"type": "text"}}, None),
        ({"regex": "x", "response_format": {"type": "text"}}, Constraint("regex", "x")),
        ({"structural_tag": "{}"}, Constraint("structural_tag", "{}")),
        ({"json_schema": {"type": "text"}}, Constraint("json_schema", {"type": "text"})),
        ({"structural_tag": {"type": "text"}}, Constraint("structural_tag", {"type": "text"})),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
            Constraint(
                "response_format", {"type": "structural_tag", "format": {"type": "any_text"}}
            ),
        ),
    ],
)
def test_each_form_of_a_constraint_is_read(
    fields: dict[str, Any], constraint: Constraint | None
) -> None:
    assert validate({**LEAST, **fields}).constraint == constraint


def test_only_one_constraint() -> None:
    body = {**LEAST, "regex": "x", "json_schema": {}}
    assert refusal(body) == ("conflicting_constraints", "json_schema")
    body = {**LEAST, "ebnf": "x", "response_format": {"type": "json_object"}}
    assert refusal(body) == ("conflicting_constraints", "response_format")


def test_a_body_must_be_an_object() -> None:
    assert refusal([]) == ("invalid_type", None)


def test_a_seed_is_drawn_when_none_is_given() -> None:
    seeds = {validate(LEAST).job.sampling.seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
names = st.sampled_from([*CompletionRequestObject().fields]) | st.text(max_size=5)


@hypothesis_settings(deadline=None)
@given(st.dictionaries(names, values))
def test_any_body_is_valid_or_an_api_error(body: dict[str, Any]) -> None:
    data = {**LEAST, **body}
    try:
        assert CompletionRequestObject().validate_for(data, ANYONE)
    except APIError as error:
        refused = error
    else:
        return
    assert refused.envelope()["error"]["message"]
