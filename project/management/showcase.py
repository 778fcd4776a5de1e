"""What `make demo` sends: one request of each kind through the official client, with its cost."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
from openai.types import Completion

CROWD_TOKENS = 32
POLL_SECONDS = 10
PATIENCE = 120.0
"""Seconds that a background job or a batch may take."""
BATCH_LINES = 12

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "city": {"enum": ["Paris", "Lagos", "Lima", "Osaka"]},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
_TOPICS = (
    "rivers",
    "bread",
    "chess",
    "the moon",
    "trains",
    "bees",
    "salt",
    "violins",
    "maps",
    "rain",
    "glass",
    "owls",
    "bridges",
    "tea",
    "clocks",
    "paper",
    "whales",
    "gardens",
    "coins",
    "wind",
)


class ShowcaseError(Exception):
    """A request failed, or its response is not what was asked for."""


def run(url: str, key: str, model: str, write: Callable[[str], None]) -> None:
    """Run all scenes against the service at `url`. Raises ShowcaseError."""
    headers = {"Authorization": f"Bearer {key}"}
    try:
        with (
            httpx.Client(base_url=url, headers=headers, timeout=60) as http,
            openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client,
        ):
            scenes = _Scenes(client, http, model, write)
            scenes.show_choice()
            scenes.show_json()
            scenes.show_stream()
            scenes.show_background()
            scenes.show_crowd()
            scenes.show_batch()
    except (openai.OpenAIError, httpx.HTTPError, json.JSONDecodeError) as error:
        raise ShowcaseError(f"{type(error).__name__}: {error}") from error


class _Scenes:
    def __init__(
        self, client: openai.OpenAI, http: httpx.Client, model: str, write: Callable[[str], None]
    ) -> None:
        self._client = client
        self._http = http
        self._model = model
        self._write = write
        self._started = 0.0

    def show_choice(self) -> None:
        self._write("\n1. Constrained by a grammar, synchronous")
        question, grammar = "Is the sea salty? Answer A for yes or B for no.", 'root ::= "A" | "B"'
        body = self._make_body(question, max_tokens=2, ebnf=grammar)
        self._write(f"   {question} -> {len(body['prompt'])} token ids; ebnf: {grammar}")
        answer = self._client.completions.create(**body)
        _require(answer.choices[0].text in ("A", "B"), answer)
        self._write(f"   {answer.choices[0].text}")
        self._write_cost(answer)

    def show_json(self) -> None:
        self._write("\n2. Constrained by a JSON schema, synchronous")
        question = "Invent a person, as JSON with name, age and city."
        answer = self._client.completions.create(
            **self._make_body(question, max_tokens=64, json_schema=_PERSON)
        )
        _require(sorted(json.loads(answer.choices[0].text)) == ["age", "city", "name"], answer)
        self._write(f"   {answer.choices[0].text}")
        self._write_cost(answer)

    def show_stream(self) -> None:
        self._write("\n3. Streamed, as it arrives")
        body = self._make_body("Tell me in one sentence why the sky is blue.", max_tokens=48)
        first = 0.0
        last: Any = None
        print("   ", end="")
        for last in self._client.completions.create(
            **body, stream=True, stream_options={"include_usage": True}
        ):
            first = first or time.monotonic()
            text = "".join(choice.text for choice in last.choices)
            print(text.replace("\n", " "), end="", flush=True)
        print(flush=True)
        _require(last is not None and last.usage is not None, last)
        self._write_cost(last, f", the first after {1000 * (first - self._started):.0f} ms")

    def show_background(self) -> None:
        self._write("\n4. In the background, polled")
        question = "Name three animals that live in the desert."
        job: Any = self._client.completions.create(
            **self._make_body(question, max_tokens=32, background=True)
        )
        self._write(f"   202 {job.id}: {job.status}")
        while job.status in ("queued", "in_progress"):
            _require(self._measure_elapsed() < PATIENCE, job)
            response = self._http.get(f"/v1/completions/{job.id}", params={"wait": POLL_SECONDS})
            job = Completion.model_validate(response.raise_for_status().json())
            self._write(f"   GET /v1/completions/{job.id}: {job.status}")
        _require(job.status == "completed", job)
        self._write(f"   {_join_lines(job.choices[0].text)}")
        self._write_cost(job)

    def show_crowd(self) -> None:
        self._write(f"\n5. {len(_TOPICS)} requests at once, with prompts of different lengths")
        bodies = [
            self._make_body(f"Write {index} sentences about {topic}.", max_tokens=CROWD_TOKENS)
            for index, topic in enumerate(_TOPICS, start=1)
        ]
        self._started = time.monotonic()
        answers = asyncio.run(self._run_all(bodies))
        elapsed = self._measure_elapsed()
        _require(all(answer.choices[0].finish_reason for answer in answers), answers[0])
        for topic, answer in list(zip(_TOPICS, answers, strict=True))[:3]:
            self._write(f"   {topic}: {_join_lines(answer.choices[0].text)[:80]}...")
        tokens = sum(answer.usage.completion_tokens for answer in answers if answer.usage)
        self._write(
            f"   {len(answers)} answers, {tokens} tokens in {elapsed:.2f} s: "
            f"{tokens / elapsed:.0f} tokens/s"
        )

    async def _run_all(self, bodies: list[dict[str, Any]]) -> list[Completion]:
        async with openai.AsyncOpenAI(
            base_url=self._client.base_url, api_key=self._client.api_key, max_retries=0
        ) as client:
            return await asyncio.gather(
                *(
                    client.completions.create(**each | {"temperature": 0.8}, seed=seed)
                    for seed, each in enumerate(bodies)
                )
            )

    def show_batch(self) -> None:
        self._write(f"\n6. A file of {BATCH_LINES} requests as an offline batch")
        self._started = started = time.monotonic()
        lines = [
            {
                "custom_id": topic,
                "method": "POST",
                "url": "/v1/completions",
                "body": self._make_body(f"Write a sentence about {topic}.", max_tokens=16),
            }
            for topic in _TOPICS[:BATCH_LINES]
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        file = self._client.files.create(file=("requests.jsonl", content), purpose="batch")
        batch: Any = self._client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        self._write(f"   {file.id} -> {batch.id}: {batch.status}")
        status = batch.status
        while batch.status in ("validating", "in_progress", "finalizing"):
            _require(time.monotonic() - started < PATIENCE, batch)
            time.sleep(0.1)
            batch = self._client.batches.retrieve(batch.id)
            if batch.status != status:
                status, counts = batch.status, batch.request_counts
                self._write(f"   {status}: {counts.completed} of {counts.total} done")
        _require(batch.status == "completed" and batch.output_file_id is not None, batch)
        answers = self._client.files.content(batch.output_file_id).text.splitlines()
        _require(len(answers) == BATCH_LINES, batch)
        first = json.loads(answers[0])
        text = first["response"]["body"]["choices"][0]["text"]
        self._write(f"   {first['custom_id']}: {_join_lines(text)[:80]}...")
        self._write(
            f"   cost: {batch.usage.input_tokens} prompt + {batch.usage.output_tokens} new tokens, "
            f"{time.monotonic() - started:.1f} s from the upload to the output file"
        )

    def _make_body(self, question: str, max_tokens: int, **more: object) -> dict[str, Any]:
        """Return the arguments of a request. `/v1/tokenize` turns the question into a prompt;
        `more` has fields that OpenAI's API lacks. Starts the clock of `_write_cost`."""
        body = {"model": self._model, "messages": [{"role": "user", "content": question}]}
        response = self._http.post("/v1/tokenize", json=body)
        prompt: list[int] = response.raise_for_status().json()["tokens"]
        self._started = time.monotonic()
        fields = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        return {**fields, "extra_body": more} if more else fields

    def _measure_elapsed(self) -> float:
        return time.monotonic() - self._started

    def _write_cost(self, answer: Completion, more: str = "") -> None:
        assert answer.usage is not None
        self._write(
            f"   cost: {answer.usage.prompt_tokens} prompt + {answer.usage.completion_tokens} new "
            f"tokens, {1000 * self._measure_elapsed():.0f} ms{more}"
        )


def _require(condition: bool, answer: object) -> None:
    if not condition:
        raise ShowcaseError(f"unexpected response: {answer!r}")


def _join_lines(text: str) -> str:
    return " ".join(text.split())
