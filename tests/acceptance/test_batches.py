"""Files and batches as a user of the official client meets them."""

import json
import time

import openai
import pytest

from tests.acceptance.service import MODEL, Installation
from tests.acceptance.small_model import SMALL

pytestmark = pytest.mark.acceptance

ENDED = ("completed", "failed", "expired", "cancelled")


def jsonl(requests) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in requests)


def request(custom_id, prompt, **body):
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def upload(client, requests):
    return client.files.create(file=("in.jsonl", jsonl(requests)), purpose="batch")


def create(client, file, **options):
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", **options
    )


def wait(client, batch, timeout=300.0):
    deadline = time.monotonic() + timeout
    while (batch := client.batches.retrieve(batch.id)).status not in ENDED:
        assert time.monotonic() < deadline, batch
        time.sleep(0.2)
    return batch


def lines(client, file_id):
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_lines_of_one_file_run_on_two_models(service: Installation, client: openai.OpenAI):
    service.wait_served(SMALL)
    requests = [request(f"{n}", [5, 6], model=(MODEL, SMALL)[n % 2]) for n in range(10)]
    batch = wait(client, create(client, upload(client, requests)))
    assert (batch.status, batch.request_counts.completed) == ("completed", 10)
    assert batch.model_extra["models"] == [MODEL, SMALL]
    answered = [line["response"]["body"]["model"] for line in lines(client, batch.output_file_id)]
    assert answered == [MODEL, SMALL] * 5


def test_the_official_client_runs_the_whole_flow(client: openai.OpenAI, tokenize):
    prompt = tokenize("The capital of France is")
    requests = [request(f"r{n}", prompt, seed=n) for n in range(12)]
    requests.append(request("choice", prompt, ebnf='root ::= "A" | "B"', max_tokens=2))
    file = upload(client, requests)
    assert (file.status, file.purpose, file.bytes) == ("processed", "batch", len(jsonl(requests)))
    assert client.files.retrieve(file.id) == file
    assert client.files.wait_for_processing(file.id) == file
    assert file in list(client.files.list())
    assert client.files.content(file.id).content == jsonl(requests)

    batch = create(client, file, metadata={"for": "a test"})
    assert batch.status == "validating"
    assert batch.id in [each.id for each in client.batches.list(limit=1)]
    done = wait(client, batch)
    assert done.status == "completed", done
    assert done.metadata == {"for": "a test"}
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (13, 13, 0)
    answers = lines(client, done.output_file_id)
    assert [line["custom_id"] for line in answers] == [each["custom_id"] for each in requests]
    live = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)
    bodies = [line["response"]["body"] for line in answers]
    assert all(body["object"] == "text_completion" for body in bodies)
    assert bodies[0]["choices"][0]["text"] == live.choices[0].text
    assert bodies[-1]["choices"][0]["text"] in ("A", "B")
    used = sum(body["usage"]["total_tokens"] for body in bodies)
    assert done.usage.total_tokens == used

    client.files.delete(file.id)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_requests_come_with_the_call(client: openai.OpenAI, tokenize):
    bodies = [request("", tokenize("One"), seed=n)["body"] for n in range(3)]
    extra = {"requests": [{"body": body} for body in bodies], "input_file_id": None}
    batch = client.batches.create(
        input_file_id="", endpoint="/v1/completions", completion_window="24h", extra_body=extra
    )
    done = wait(client, batch)
    answers = lines(client, done.output_file_id)
    assert [line["custom_id"] for line in answers] == ["request-1", "request-2", "request-3"]


def test_lines_score_tokens(service: Installation, client: openai.OpenAI, http, tokenize):
    """The scores of a line are those of a request, also under a grammar. A prompt is computed once
    for all of its continuations, and comes from the cache for a later line."""
    service.wait_served(MODEL)
    prompt = tokenize(
        "Of all the rivers that flow through the cities of Europe, the longest is " * 4
    )
    given = [tokenize(" the Volga"), tokenize(" Paris"), tokenize(" the Rhine")]
    fields = {"max_tokens": 0, "continuation_token_ids": given}
    lines_ = [
        request("free", prompt, **fields),
        request("bound", prompt, **fields, regex=" the [A-Z][a-z]+"),
    ]
    done = wait(client, create(client, upload(client, lines_), extra_body={"close": True}))
    assert (done.status, done.request_counts.completed) == ("completed", 2), done
    answers = {
        line["custom_id"]: line["response"]["body"] for line in lines(client, done.output_file_id)
    }
    for line in lines_:
        alone = http.post("/v1/completions", json=line["body"]).json()
        answer = answers[line["custom_id"]]
        assert [each["score"] for each in answer["choices"]] == [
            each["score"] for each in alone["choices"]
        ]
        assert answer["usage"]["prompt_tokens"] == len(prompt) + sum(map(len, given))
        assert answer["usage"]["completion_tokens"] == 0
        cached = alone["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > len(prompt) // 2, alone["usage"]
    free, bound = (
        [each["score"].get("forbidden_at") for each in answers[name]["choices"]]
        for name in ("free", "bound")
    )
    assert free == [None] * 3
    assert bound == [None, 0, None]


@pytest.mark.wide
def test_the_official_client_uploads_a_file_in_parts(client: openai.OpenAI, tmp_path) -> None:
    """Its parts are larger than other bodies may be."""
    path = tmp_path / "lines.jsonl"
    path.write_bytes(jsonl(request(f"r{n}", [1] * 50) for n in range(80_000)))
    size = path.stat().st_size
    assert size > 9 * 2**20
    done = client.uploads.upload_file_chunked(
        file=path, mime_type="application/jsonl", purpose="batch", part_size=9 * 2**20
    )
    assert done.status == "completed"
    assert done.file is not None
    assert (done.file.bytes, done.file.filename) == (size, "lines.jsonl")
    assert client.files.content(done.file.id).content == path.read_bytes()
    client.files.delete(done.file.id)


def test_a_bad_file_fails_with_line_numbers(client: openai.OpenAI):
    requests = [request("a", [1]), request("a", [1]), request("b", [10**6])]
    wanted = {"extra_body": {"on_invalid": "fail"}}
    done = wait(client, create(client, upload(client, requests), **wanted))
    assert done.status == "failed"
    found = [(error.line, error.code, error.param) for error in done.errors.data]
    assert found == [
        (2, "duplicate_custom_id", "custom_id"), (3, "invalid_token_id", "body.prompt[0]"),
    ]  # fmt: skip


def test_a_refused_line_does_not_stop_the_others(client: openai.OpenAI):
    requests = [request("a", [1]), request("b", [10**6])]
    done = wait(client, create(client, upload(client, requests)))
    counts = done.request_counts
    assert (done.status, counts.completed, counts.failed) == ("completed", 1, 1)
    (refused,) = lines(client, done.error_file_id)
    assert refused["custom_id"] == "b"
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"]["code"] == "invalid_token_id"


@pytest.mark.wide
def test_a_cancelled_batch_keeps_its_results_and_runs_the_rest_again(client, http, tokenize):
    prompt = tokenize("Count")
    quick = [request(f"quick{n}", prompt) for n in range(3)]
    slow = [request(f"slow{n}", prompt, max_tokens=3000, ignore_eos=True, seed=n) for n in range(4)]
    batch = create(client, upload(client, quick + slow))
    deadline = time.monotonic() + 240
    while (seen := client.batches.retrieve(batch.id)).request_counts.completed < 3:
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)
    assert len(lines(client, seen.output_file_id)) == 3  # before its end
    assert client.batches.cancel(batch.id).status == "cancelling"
    done = wait(client, batch)
    assert done.status == "cancelled"
    assert {line["custom_id"] for line in lines(client, done.output_file_id)} == {
        each["custom_id"] for each in quick
    }
    errors = lines(client, done.error_file_id)
    assert [line["error"]["code"] for line in errors] == ["batch_cancelled"] * 4
    again = http.post(f"/v1/batches/{batch.id}/resubmit").json()
    assert again["resubmission_of"] == batch.id
    client.batches.cancel(again["id"])
    assert wait(client, client.batches.retrieve(again["id"])).request_counts.completed == 0


def test_a_large_upload_is_refused_before_it_is_read(service):
    with service.http(key="sk-nobody") as http:
        answer = http.post("/v1/files", content=b"x" * 1000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
