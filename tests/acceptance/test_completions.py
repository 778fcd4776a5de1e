"""The whole path through the official client: HTTP, queue, worker, engine and back."""

import json
import re
import time

import jsonschema
import openai
import pytest

from tests.acceptance.service import MODEL

pytestmark = pytest.mark.acceptance

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def test_the_seeds_call_is_answered_exactly(client):
    completion = client.completions.create(
        model=MODEL,
        prompt=[9703],
        max_tokens=2,
        temperature=0,
        extra_body={"ebnf": 'root ::= "A" | "B"'},
    )
    (choice,) = completion.choices
    assert choice.text in ("A", "B")
    assert choice.finish_reason == "stop"
    assert choice.matched_stop is None
    assert completion.usage.completion_tokens == 1
    assert completion.usage.prompt_tokens == 1
    assert completion.usage.total_tokens == 2
    assert completion.usage.prompt_tokens_details.cached_tokens == 0
    assert completion.object == "text_completion"
    assert completion.id.startswith("cmpl-")


def test_a_batch_with_n_has_its_choices_in_order(client, tokenize):
    prompts = [tokenize("One"), tokenize("Once upon a time")]
    completion = client.completions.create(
        model=MODEL,
        prompt=prompts,
        n=3,
        max_tokens=5,
        seed=1,
        extra_body={"return_token_ids": True},
    )
    assert [choice.index for choice in completion.choices] == list(range(6))
    assert [c.prompt_token_ids for c in completion.choices] == [prompts[i // 3] for i in range(6)]
    assert completion.usage.prompt_tokens == sum(map(len, prompts))
    assert completion.usage.completion_tokens == sum(len(c.token_ids) for c in completion.choices)
    assert len({choice.text for choice in completion.choices[:3]}) > 1


@pytest.mark.represented_by("sampling0")
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"temperature": 0.8, "seed": 11, "top_p": 0.9}]
)
def test_a_stream_equals_the_answer(client, tokenize, sampling):
    call = {
        "model": MODEL,
        "prompt": [tokenize("The sea"), tokenize("Die Bären essen 🍎")],
        "n": 2,
        "max_tokens": 24,
        "stop": ["\n\n", "."],
        "extra_body": {"return_token_ids": True},
        **sampling,
    }
    whole = client.completions.create(**call)
    texts, ids, finishes, numbers, usage = {}, {}, {}, [], None
    for chunk in client.completions.create(
        **call, stream=True, stream_options={"include_usage": True}
    ):
        numbers.append(chunk.sequence_number)
        if not chunk.choices:
            usage = chunk.usage
            continue
        assert chunk.usage is None
        (choice,) = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + choice.text
        ids[choice.index] = ids.get(choice.index, []) + choice.token_ids
        if choice.finish_reason:
            finishes[choice.index] = (choice.finish_reason, choice.matched_stop)
    assert numbers == list(range(1, len(numbers) + 1))
    assert usage == whole.usage
    for choice in whole.choices:
        assert texts[choice.index] == choice.text
        assert ids[choice.index] == choice.token_ids
        assert finishes[choice.index] == (choice.finish_reason, choice.matched_stop)
        assert "." not in choice.text


@pytest.mark.parametrize("salt", [{}, {"cache_salt": "the same"}])
def test_cached_tokens_are_counted_within_one_organization_only(client, service, tokenize, salt):
    """Without a salt a cache is its key's; a salt is its organization's, so guessing it is vain."""
    prompt = tokenize("A prompt that nobody else in these tests sends. " * 12)
    name = f"cold-{len(salt)}"
    strange = service.manage("create_api_key", name, "--organization", name).strip()

    def cached(who):
        done = who.completions.create(model=MODEL, prompt=prompt, max_tokens=1, extra_body=salt)
        return done.usage.prompt_tokens_details.cached_tokens

    assert cached(client) == 0
    assert cached(client) == (len(prompt) - 1) // 16 * 16 > 64
    with service.client(strange) as stranger:
        assert cached(stranger) == 0


def test_json_schema_output_is_an_instance(client, tokenize):
    for as_field in (
        {"extra_body": {"json_schema": RECORD}},
        {"extra_body": {"json_schema": json.dumps(RECORD)}},
        {
            "extra_body": {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "record", "schema": RECORD},
                }
            }
        },
    ):
        completion = client.completions.create(
            model=MODEL,
            prompt=tokenize("A customer record:"),
            n=4,
            max_tokens=200,
            seed=5,
            **as_field,
        )
        for choice in completion.choices:
            assert choice.finish_reason == "stop"
            jsonschema.validate(json.loads(choice.text), RECORD)


def test_regex_and_ebnf_output_match(client, tokenize):
    pattern = r"[A-Z][a-z]{2,8} \d{4}"
    dated = client.completions.create(
        model=MODEL, prompt=tokenize("Date:"), n=8, max_tokens=40, extra_body={"regex": pattern}
    )
    assert all(re.fullmatch(pattern, choice.text) for choice in dated.choices)
    grammar = 'root ::= item ("," item)*\nitem ::= [0-9]+ | "(" root ")"'
    listed = client.completions.create(
        model=MODEL, prompt=tokenize("1,"), n=8, max_tokens=30, extra_body={"ebnf": grammar}
    )
    for choice in listed.choices:
        assert re.fullmatch(r"[0-9,()]*", choice.text)
        if choice.finish_reason == "stop":
            assert choice.text.count("(") == choice.text.count(")")


def test_stop_ids_and_bias_steer(client, tokenize):
    comma = tokenize(",")[0]
    completion = client.completions.create(
        model=MODEL,
        prompt=tokenize("Hello"),
        max_tokens=5,
        logit_bias={str(comma): 100},
        temperature=0,
        extra_body={"stop_token_ids": [comma], "return_token_ids": True},
    )
    (choice,) = completion.choices
    assert (choice.text, choice.finish_reason, choice.matched_stop) == ("", "stop", comma)
    assert choice.token_ids == [comma]
    assert completion.usage.completion_tokens == 1


def test_a_seed_repeats_and_others_differ(client, tokenize):
    def text(seed):
        return (
            client.completions.create(
                model=MODEL, prompt=tokenize("Random words:"), max_tokens=12, seed=seed
            )
            .choices[0]
            .text
        )

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


def test_errors_arrive_as_the_clients_exceptions(client, service):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt=[1], extra_body={"temprature": 1})
    assert refused.value.code == "unknown_parameter"
    assert refused.value.param == "temprature"
    assert "temperature" in refused.value.message
    assert refused.value.request_id
    with pytest.raises(openai.BadRequestError) as grammar:
        client.completions.create(model=MODEL, prompt=[1], extra_body={"ebnf": "root ::= ("})
    assert grammar.value.code == "invalid_grammar"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="nobody", prompt=[1])
    assert unknown.value.code == "model_not_found"
    with service.client("sk-wrong") as other, pytest.raises(openai.AuthenticationError) as stranger:
        other.completions.create(model=MODEL, prompt=[1])
    assert stranger.value.code == "invalid_api_key"


def test_usage_is_counted_once_per_job(service, client, tokenize):
    ids = [
        client.completions.create(
            model=MODEL, prompt=tokenize("Count"), max_tokens=4, extra_body={"ignore_eos": True}
        ).id
        for _ in range(3)
    ]
    script = (
        "from completions.models import UsageRecord as U;"
        f"mine = U.objects.filter(job_id__in={ids});"
        "print([(u.prompt_tokens, u.completion_tokens) for u in mine])"
    )
    deadline = time.monotonic() + 240
    while (rows := service.manage("shell", "-v0", "-c", script).strip()) != str([(1, 4)] * 3):
        assert time.monotonic() < deadline, rows
