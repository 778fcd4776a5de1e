"""What the passthrough fields do, through a whole installation with the real model."""

import json
import math
import uuid

import openai
import pytest

from tests.acceptance.service import MODEL
from tests.acceptance.small_model import CONTEXT, SMALL

pytestmark = pytest.mark.acceptance


@pytest.fixture
def ask(http):
    """A completion by raw JSON; the whole response."""

    def post(**fields):
        body = {"model": MODEL, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}
        return http.post("/v1/completions", json=body)

    return post


def choices_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def frames(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def test_log_probabilities_streamed_or_not(ask, tokenize):
    call = {"prompt": tokenize("The capital of France is"), "logprobs": 2}
    (choice,) = choices_of(ask(**call))
    scores = choice["logprobs"]
    assert "".join(scores["tokens"]) == choice["text"]
    assert scores["text_offset"][0] == 0
    for token, own, best in zip(
        scores["tokens"], scores["token_logprobs"], scores["top_logprobs"], strict=True
    ):
        assert own <= 0
        assert best[token] == own == max(best.values())  # temperature 0
        assert 2 <= len(best) <= 3
    streamed = frames(ask(**call, stream=True).text)
    together = [token for chunk in streamed for token in chunk["choices"][0]["logprobs"]["tokens"]]
    assert together == scores["tokens"]


def test_a_text_is_scored_without_generating(ask, tokenize):
    text = "Paris is the capital of France."
    ids = tokenize(text)
    (choice,) = choices_of(
        ask(prompt=ids, max_tokens=0, echo=True, logprobs=0, ignore_eos=False)
    )  # fmt: skip
    scores = choice["logprobs"]
    assert (choice["text"], choice["finish_reason"]) == (text, "length")
    assert "".join(scores["tokens"]) == text
    assert scores["token_logprobs"][0] is None
    assert all(-30 < own < 0 for own in scores["token_logprobs"][1:])
    offsets = [text.index(token, at) for token, at in zip(
        scores["tokens"], scores["text_offset"], strict=True)]  # fmt: skip
    assert offsets == scores["text_offset"]


def test_sglangs_native_scores(ask, tokenize):
    ids = tokenize("One two three")
    (choice,) = choices_of(
        ask(
            prompt=ids, return_logprob=True, top_logprobs_num=3, logprob_start_len=1,
            token_ids_logprob=[5, 6], return_text_in_logprobs=True, return_token_ids=True,
        )
    )  # fmt: skip
    info = choice["meta_info"]
    assert [entry[1] for entry in info["output_token_logprobs"]] == choice["token_ids"]
    assert [entry[1] for entry in info["input_token_logprobs"]] == ids[1:]
    assert info["input_token_logprobs"][0][0] is None
    assert all(len(row) == 3 for row in info["output_top_logprobs"])
    for own, best in zip(info["output_token_logprobs"], info["output_top_logprobs"], strict=True):
        assert own == best[0]
        assert sum(math.exp(score) for score, _, _ in best) <= 1.0001
    assert [entry[1] for entry in info["output_token_ids_logprobs"][0]] == [5, 6]
    assert info["completion_tokens"] == 8


def test_stop_regexes_and_what_is_left_of_them(ask, tokenize):
    call = {"prompt": tokenize("1, 2, 3, 4,"), "max_tokens": 40, "stop_regex": "[78]"}
    call["regex"] = "( [0-6],){2} [78],"
    (choice,) = choices_of(ask(**call))
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", "[78]")
    assert choice["text"].endswith(" ")
    matched = choice["meta_info"]["matched_stop_text"]
    (kept,) = choices_of(ask(**call, no_stop_trim=True))
    assert kept["text"] == choice["text"] + matched


def test_a_bad_stop_regex_is_refused_at_its_place(client):
    with pytest.raises(openai.BadRequestError, match="at character 2") as refused:
        client.completions.create(model=MODEL, prompt=[1], extra_body={"stop_regex": ["x", "a("]})
    assert refused.value.param == "stop_regex[1]"


@pytest.mark.represented_by("False")
@pytest.mark.parametrize("stream", [False, True])
def test_hidden_states_and_cached_tokens(ask, tokenize, stream):
    call = {
        "prompt": tokenize("Hidden"), "n": 2, "return_hidden_states": "last",
        "return_cached_tokens_details": True, "stream": stream,
    }  # fmt: skip
    answer = ask(**call)
    if stream:
        *_, one, two, extension = frames(answer.text)
        found = [chunk["choices"][0]["hidden_states"] for chunk in (one, two)]
    else:
        extension = answer.json()
        found = [choice["hidden_states"] for choice in choices_of(answer)]
    assert [len(states) for states in found] == [576, 576]
    assert set(extension["sglext"]["cached_tokens_details"]) == {"device"}


def test_the_callers_own_id_is_used_once(ask, tokenize):
    rid = f"job-{uuid.uuid4()}"
    call = {"prompt": [tokenize("a"), tokenize("b")], "rid": rid, "max_tokens": 1}
    answer = ask(**call)
    assert answer.json()["rid"] == rid
    ids = [choice["meta_info"]["id"] for choice in choices_of(answer)]
    assert ids == [f"{rid}_0", f"{rid}_1"]
    again = ask(**call)
    assert (again.status_code, again.json()["error"]["param"]) == (400, "rid")


def test_fields_without_effect_are_named(ask, tokenize):
    answer = ask(prompt=tokenize("x"), user="me", store=True, seed=3)
    assert answer.headers["x-ignored-params"] == "user, store"
    assert "x-ignored-params" not in ask(prompt=tokenize("x")).headers
    assert int(answer.headers["openai-processing-ms"]) > 0


def test_numbers_of_events_come_as_ids_when_asked(http, tokenize):
    body = {"model": MODEL, "prompt": tokenize("x"), "max_tokens": 3, "stream": True}
    plain = http.post("/v1/completions", json=body).text
    numbered = http.post("/v1/completions?sse_ids=1", json=body).text
    assert "id: " not in plain
    assert "id: 1\n" in numbered


def test_a_long_prompt_is_cut_when_that_is_asked(ask):
    call = {"model": SMALL, "prompt": [65] * (CONTEXT + 100)}
    assert ask(**call).json()["error"]["code"] == "context_length_exceeded"
    answer = ask(**call, truncate_sequence=True, max_tokens=100, stop=[" "])
    assert answer.json()["usage"]["prompt_tokens"] == CONTEXT - 100


def test_an_unknown_adapter_is_not_found(client):
    for call in ({"model": f"{MODEL}:nobody"}, {"model": MODEL, "extra_body": {"lora_path": "x"}}):
        with pytest.raises(openai.NotFoundError) as refused:
            client.completions.create(prompt=[1], **call)
        assert refused.value.code == "adapter_not_found"


def test_hurrying_needs_a_key_that_may(service, http, tokenize):
    body = {"model": MODEL, "prompt": tokenize("x"), "max_tokens": 1, "priority": 5}
    refused = http.post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
    hasty = service.manage("create_api_key", "hasty", "--max-priority", "5").strip()
    with service.http(hasty) as allowed:
        assert allowed.post("/v1/completions", json=body).status_code == 200
