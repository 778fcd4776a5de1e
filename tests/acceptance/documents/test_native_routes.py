"""The examples that SGLang and vLLM print for their own routes, with another URL, key and model:
docs/basic_usage/sampling_params.md, and examples/online_serving/token_generation_client.py."""

import json
import re
from typing import Any

import httpx
import pytest

from tests.acceptance.service import MODEL, Installation
from tests.acceptance.small_model import ADAPTER, SMALL

pytestmark = pytest.mark.acceptance

FRANCE = "The capital of France is"
GREEDY = {"temperature": 0, "max_new_tokens": 32}


@pytest.fixture
def texts(service: Installation) -> str:
    """A model that takes texts."""
    service.wait_served(SMALL)
    return SMALL


def post(http: httpx.Client, **body: Any) -> Any:
    response = http.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_text(http: httpx.Client, texts: str) -> None:
    output = post(http, model=texts, text=FRANCE, sampling_params=GREEDY)
    assert output.keys() == {"text", "output_ids", "meta_info"}
    info = output["meta_info"]
    assert info["completion_tokens"] == len(output["output_ids"])
    assert info["finish_reason"]["type"] in ("stop", "length")


def test_a_stream(http: httpx.Client, texts: str) -> None:
    body = {"model": texts, "text": FRANCE, "sampling_params": GREEDY, "stream": True}
    seen, previous = "", 0
    with http.stream("POST", "/generate", json=body) as response:
        for line in response.iter_lines():
            if line and line.startswith("data:"):
                if line == "data: [DONE]":
                    break
                data = json.loads(line[5:].strip("\n"))
                output = data["text"].strip()
                seen += output[previous:]
                previous = len(output)
    whole = post(http, model=texts, text=FRANCE, sampling_params=GREEDY)
    assert seen == whole["text"].strip()
    assert data["output_ids"] == whole["output_ids"]
    assert data["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[\\w]+$"},
        "population": {"type": "integer"},
    },
    "required": ["name", "population"],
}


@pytest.mark.parametrize(
    ("text", "constraint", "shape"),
    [
        (
            "Here is the information of the capital of France in the JSON format.\n",
            {"json_schema": json.dumps(SCHEMA)},
            r'\{"name".*',
        ),
        ("Paris is the capital of", {"regex": "(France|England)"}, "(France|England)"),
        ("Write a greeting.", {"ebnf": 'root ::= "Hello" | "Hi" | "Hey"'}, "Hello|Hi|Hey"),
    ],
)
def test_a_constraint(
    http: httpx.Client, texts: str, text: str, constraint: dict[str, str], shape: str
) -> None:
    params = {"temperature": 0, "max_new_tokens": 64, **constraint}
    output = post(http, model=texts, text=text, sampling_params=params)
    assert re.fullmatch(shape, output["text"], re.DOTALL), output


def test_a_text_without_parameters(http: httpx.Client, texts: str) -> None:
    """docs/basic_usage/native_api.ipynb."""
    output = post(http, model=texts, text="What is the capital of France?")
    assert output["text"]
    assert output["meta_info"]["completion_tokens"] <= 128


def test_several_outputs_under_rules(http: httpx.Client, texts: str) -> None:
    """docs/advanced_features/structured_outputs.ipynb, with a prompt that has no template."""
    params = {
        "max_new_tokens": 128,
        "temperature": 0,
        "n": 3,
        "ebnf": (
            "root ::= city | description\n"
            'city ::= "London" | "Paris" | "Berlin" | "Rome"\n'
            'description ::= city " is " status\n'
            'status ::= "the capital of " country\n'
            'country ::= "England" | "France" | "Germany" | "Italy"'
        ),
    }
    text = "Give me the information of the capital of France."
    body = {"text": text, "sampling_params": params, "stream": False, "return_logprob": False}
    outputs = post(http, model=texts, **body)
    shape = "(London|Paris|Berlin|Rome)( is the capital of (England|France|Germany|Italy))?"
    assert [bool(re.fullmatch(shape, each["text"])) for each in outputs] == [True] * 3, outputs


def test_an_adapter_for_one_of_two_prompts(http: httpx.Client, texts: str) -> None:
    """docs/advanced_features/lora.ipynb."""
    text, params = "List 3 countries and their capitals.", {"max_new_tokens": 32, "temperature": 0}
    adapted, plain = post(
        http, model=texts, text=[text, text], sampling_params=params, lora_path=[ADAPTER, None]
    )
    alone = post(http, model=texts, text=text, sampling_params=params)
    assert plain["output_ids"] == alone["output_ids"] != adapted["output_ids"]


def test_a_structural_tag(http: httpx.Client, texts: str) -> None:
    """docs/advanced_features/structured_outputs.ipynb, with a prompt that has no template."""
    city = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
    }
    begin, end = "<function=get_current_weather>", "</function>"
    old = {
        "type": "structural_tag",
        "structures": [{"begin": begin, "schema": city, "end": end}],
        "triggers": ["<function="],
    }
    content = {"type": "json_schema", "json_schema": city}
    tag = {"begin": begin, "content": content, "end": end}
    new = {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<function="],
            "tags": [tag],
            "at_least_one": True,
            "stop_after_first": True,
        },
    }
    for tree in (old, new):
        params = {"temperature": 0, "max_new_tokens": 80, "structural_tag": json.dumps(tree)}
        output = post(http, model=texts, text="The weather in Paris?", sampling_params=params)
        assert output["text"].startswith(begin if tree is new else ""), output


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"image_data": "example_image.png"}, "image_data"),
        ({"custom_logit_processor": '{"callable": "8004"}'}, "custom_logit_processor"),
        ({"require_reasoning": True}, "require_reasoning"),
        ({"return_hidden_states": True}, "return_hidden_states"),
        ({"input_embeds": [[0.5]]}, "input_embeds"),
    ],
)
def test_what_quire_has_not_is_refused_by_name(
    http: httpx.Client, texts: str, fields: dict[str, Any], name: str
) -> None:
    body = {"model": texts, "text": FRANCE, "sampling_params": GREEDY, **fields}
    response = http.post("/generate", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == name


def test_token_ids_with_their_log_probabilities(service: Installation, http: httpx.Client) -> None:
    service.wait_served(MODEL)
    params = {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True}
    scored = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    outputs = post(http, model=MODEL, input_ids=[[1, 2], [3]], sampling_params=params, **scored)
    for prompt, output in zip(([1, 2], [3]), outputs, strict=True):
        info = output["meta_info"]
        assert [entry[1] for entry in info["output_token_logprobs"]] == output["output_ids"]
        assert [entry[1] for entry in info["input_token_logprobs"]] == prompt
        assert [len(row) for row in info["output_top_logprobs"]] == [2, 2, 2]
    (alone,) = post(http, model=MODEL, input_ids=[[3]], sampling_params=params)
    assert alone["output_ids"] == outputs[1]["output_ids"]


def test_the_printed_client_of_token_ids(service: Installation, http: httpx.Client) -> None:
    service.wait_served(MODEL)
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "How many countries are in the EU?"},
    ]
    chat = {"model": MODEL, "messages": messages}
    payload = {
        "model": MODEL,
        "token_ids": http.post("/v1/tokenize", json=chat).json()["tokens"],
        "sampling_params": {"max_tokens": 24, "temperature": 0.2, "detokenize": False},
        "stream": False,
    }
    response = http.post("/inference/v1/generate", json=payload)
    response.raise_for_status()
    (choice,) = response.json()["choices"]
    tokens = {"model": MODEL, "tokens": choice["token_ids"]}
    assert 0 < len(choice["token_ids"]) <= 24
    assert http.post("/v1/detokenize", json=tokens).json()["prompt"]


def test_a_client_of_token_ids(service: Installation, http: httpx.Client) -> None:
    service.wait_served(MODEL)
    tokens = http.post("/v1/tokenize", json={"model": MODEL, "prompt": FRANCE}).json()["tokens"]
    payload = {
        "model": MODEL,
        "token_ids": tokens,
        "sampling_params": {"max_tokens": 10, "temperature": 0, "detokenize": False, "logprobs": 1},
        "stream": False,
    }
    data = http.post("/inference/v1/generate", json=payload).json()
    (choice,) = data["choices"]
    assert data["usage"]["prompt_tokens"] == len(tokens)
    assert choice["logprobs"]["content"][0]["token"] == f"token_id:{choice['token_ids'][0]}"
    scored = {**payload, "sampling_params": {"max_tokens": 1, "prompt_logprobs": 1}}
    first, *others = http.post("/inference/v1/generate", json=scored).json()["prompt_logprobs"]
    assert first is None
    assert [str(token) in entry for token, entry in zip(tokens[1:], others, strict=True)] == [
        True
    ] * len(others)
    streamed = {**payload, "stream": True, "stream_options": {"include_usage": True}}
    response = http.post("/inference/v1/generate", json=streamed)
    *frames, done, _ = response.text.split("\n\n")
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert done == "data: [DONE]"
    ids = [i for chunk in chunks for each in chunk["choices"] for i in each["token_ids"]]
    assert ids == choice["token_ids"]
    assert chunks[-1]["usage"]["completion_tokens"] == len(ids)
    assert len({chunk["request_id"] for chunk in chunks}) == 1


def test_the_job_is_a_completion(service: Installation, http: httpx.Client) -> None:
    service.wait_served(MODEL)
    body = {"model": MODEL, "input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}}
    accepted = http.post("/generate", json=body, headers={"Prefer": "respond-async, wait=30"})
    polled = http.get(f"{accepted.headers['Location']}?wait=30").json()
    assert (polled["object"], polled["status"]) == ("text_completion", "completed")
