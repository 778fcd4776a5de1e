"""The job that a request becomes."""

import orjson
import pytest
from msgspec import structs

from completions.contract.job_request import LogprobParams, decode_job_request, encode_job_request
from completions.contract.sampling import SamplingParams
from completions.jobs.events import ChoiceEvent
from completions.responses.completion import ResponseContext
from tests.completions.requests.validating import LEAST, prepared

pytestmark = pytest.mark.usefixtures("served")


def test_best_of_dry_and_processors_reach_the_worker() -> None:
    params = {"token_ids": [1, 2], "a": {"b": None}, "c": True}
    fields = {
        "custom_logit_processor": "disallowed_tokens",
        "custom_params": params,
        "best_of": 4,
        "n": 2,
        "dry_multiplier": 1,
        "dry_base": 2,
        "dry_allowed_length": 0,
        "dry_sequence_breakers": [],
    }
    sampling = prepared({**LEAST, **fields}).job_request.sampling
    expected = {**fields, "dry_sequence_breakers": ()}
    assert {name: getattr(sampling, name) for name in fields} == expected
    default = prepared(LEAST).job_request.sampling
    assert default == SamplingParams(seed=default.seed)


def test_a_worker_scores_what_any_field_asks() -> None:
    body = {
        **LEAST,
        "prompt": [[1], [2, 3]],
        "echo": True,
        "return_logprob": [False, True],
        "top_logprobs_num": [0, 5],
        "logprob_start_len": [-1, 1],
        "token_ids_logprob": [[], [9]],
    }
    second = LogprobParams(top_logprobs_num=5, logprob_start_len=1, token_ids_logprob=(9,))
    assert prepared(body).job_request.logprobs == (None, second)
    first = LogprobParams(top_logprobs_num=2, logprob_start_len=0)
    both = prepared({**body, "logprobs": 2}).job_request.logprobs
    assert both == (first, structs.replace(second, logprob_start_len=0))
    assert prepared(LEAST).job_request.logprobs is None


def test_what_a_response_is_built_from_can_be_stored() -> None:
    fields = {
        "prompt": [[1], [2, 3]],
        "return_logprob": [True, False],
        "logprob_start_len": [0, -1],
        "rid": ["a", "b"],
        "return_token_ids": True,
    }
    view = prepared({**LEAST, **fields}).context
    stored = ResponseContext.read(view.to_json())
    assert stored.sglang_logprobs == [(True, 0, [], 0), None]
    assert stored.to_json() == view.to_json()


def test_an_echo_has_special_tokens_if_they_are_not_skipped() -> None:
    body = {**LEAST, "prompt": [256, 64], "echo": True}
    assert prepared(body).context.echo == ["a"]
    assert prepared({**body, "skip_special_tokens": False}).context.echo == ["<s>a"]


def test_an_echo_that_ends_within_a_character_can_be_stored() -> None:
    files = prepared(LEAST).request.model.files
    ids = files.tokenizer.encode("a\u20ac", add_special_tokens=False).ids
    view = prepared({**LEAST, "prompt": [ids, ids[:-1]], "echo": True}).context
    assert view.open_ends == [None, ("a", "e282")]
    stored = ResponseContext.read(view.to_json())
    assert stored.to_json() == view.to_json()


def test_the_job_holds_the_engines_parameters() -> None:
    fields = {"stop": "x", "logit_bias": {"3": 1}, "seed": -7, "dry_sequence_breakers": ["a"]}
    job = prepared({**LEAST, **fields}).job_request
    assert (job.prompts, job.grammar, job.adapters, job.logprobs) == (((1, 2),), None, None, None)
    assert job.sampling == SamplingParams(
        stop=("x",), logit_bias={3: 1.0}, seed=-7, dry_sequence_breakers=("a",)
    )
    assert decode_job_request(encode_job_request(job)) == job


# What `workers/payload.py` of 0.1.0 knows. It fails a job that has any other field.
OF_0_1_0 = {
    "prompts",
    "sampling",
    "adapters",
    "logprobs",
    "grammar",
    "priority",
    "cache_salt",
    "return_hidden_states",
    "return_routed_experts",
    "routed_experts_start_len",
}
SAMPLING_OF_0_1_0 = {
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_sequence_breakers",
    "custom_logit_processor",
    "custom_params",
    "seed",
    "n",
    "best_of",
    "stop",
    "stop_regex",
    "stop_token_ids",
    "ignore_eos",
    "no_stop_trim",
    "skip_special_tokens",
    "spaces_between_special_tokens",
}


@pytest.mark.parametrize("fields", [{}, {"regex": "a"}, {"return_meta_info": True}])
def test_older_workers_read_requests_without_newer_fields(fields: dict[str, object]) -> None:
    """An upgrade replaces the web tier before the workers."""
    job = orjson.loads(encode_job_request(prepared({**LEAST, **fields}).job_request))
    assert {"prompts", "sampling"} <= job.keys() <= OF_0_1_0
    assert job["sampling"].keys() <= SAMPLING_OF_0_1_0


def test_the_job_asks_for_the_effect_of_a_grammar() -> None:
    body = {**LEAST, "regex": "a", "return_meta_info": True}
    assert prepared(body).job_request.report_constraint is True


def test_the_job_holds_the_judged_grammar() -> None:
    assert "start:" in (prepared({**LEAST, "ebnf": 'root ::= "A" | "B"'}).job_request.grammar or "")


def test_a_prompt_is_stored_once_for_all_of_its_continuations() -> None:
    body = {
        "model": "tiny",
        "prompt": [[1, 2, 3], [4]],
        "continuation_token_ids": [[[5], [6], [7]], [[8]]],
        "return_token_ids": True,
    }
    context = prepared(body).context
    stored = ResponseContext.read(context.to_json())
    assert stored.prompts == [[1, 2, 3], [4]]
    assert stored.prompt_lengths == [3, 3, 3, 1]
    assert [stored.get_prompt(choice) for choice in range(4)] == [[1, 2, 3]] * 3 + [[4]]
    generated = prepared({**body, "continuation_token_ids": None, "n": 2}).context
    assert [generated.get_prompt(choice) for choice in range(4)] == [(1, 2, 3)] * 2 + [(4,)] * 2
    assert prepared({**body, "return_token_ids": False}).context.get_prompt(0) is None


def test_every_choice_shows_the_prompt_that_its_continuation_follows() -> None:
    body = {
        "model": "tiny",
        "prompt": [[1, 2, 3], [4]],
        "continuation_token_ids": [[[5], [6]], [[8]]],
        "return_token_ids": True,
    }
    collected = prepared(body).context.make_collected()
    collected.add([ChoiceEvent(index, [9], "x", "length", None) for index in range(3)])
    shown = collected.make_response(None)["choices"]
    assert [each["prompt_token_ids"] for each in shown] == [(1, 2, 3), (1, 2, 3), (4,)]
