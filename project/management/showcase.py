"""What `make demo` sends: one request of each kind through the official client, with its cost."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import openai
from openai.types import Completion

CROWD = 20
CROWD_TOKENS = 32
POLL_SECONDS = 10
BACKGROUND_PATIENCE = 120.0
BATCH_LINES = 12
BATCH_PATIENCE = 120.0

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
    "rivers", "bread", "chess", "the moon", "trains", "bees", "salt", "violins", "maps", "rain",
    "glass", "owls", "bridges", "tea", "clocks", "paper", "whales", "gardens", "coins", "wind",
)  # fmt: skip


class ShowcaseError(Exception):
    """A request failed, or was answered with something else than was asked for."""


@dataclass(frozen=True, slots=True)
class Showcase:
    """The scenes, against one running service."""

    url: str
    key: str
    model: str
    write: Callable[[str], None]

    def run(self) -> None:
        """All scenes. Raises ShowcaseError."""
        try:
            self._run()
        except (openai.OpenAIError, httpx.HTTPError, json.JSONDecodeError) as error:
            raise ShowcaseError(f"{type(error).__name__}: {error}") from error

    def _run(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}"}
        with (
            httpx.Client(base_url=self.url, headers=headers, timeout=60) as http,
            openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0) as client,
        ):
            self._choice(client, http)
            self._json(client, http)
            self._stream(client, http)
            self._background(client, http)
            self._crowd(http)
            self._batch(client, http)

    # Scenes ----------------------------------------------------------------------------------

    def _choice(self, client: openai.OpenAI, http: httpx.Client) -> None:
        self.write("\n1. Constrained by a grammar, synchronous")
        question = "Is the sea salty? Answer A for yes or B for no."
        prompt = self._tokenize(http, question)
        self.write(f'   {question} -> {len(prompt)} token ids; ebnf: root ::= "A" | "B"')
        started = time.monotonic()
        answer = client.completions.create(
            model=self.model,
            prompt=prompt,
            max_tokens=2,
            temperature=0,
            extra_body={"ebnf": 'root ::= "A" | "B"'},
        )
        _require(answer.choices[0].text in ("A", "B"), answer)
        self.write(f"   {answer.choices[0].text}")
        self._cost(answer, started)

    def _json(self, client: openai.OpenAI, http: httpx.Client) -> None:
        self.write("\n2. Constrained by a JSON schema, synchronous")
        prompt = self._tokenize(http, "Invent a person, as JSON with name, age and city.")
        started = time.monotonic()
        answer = client.completions.create(
            model=self.model,
            prompt=prompt,
            max_tokens=64,
            temperature=0,
            extra_body={"json_schema": _PERSON},
        )
        person = json.loads(answer.choices[0].text)
        _require(sorted(person) == ["age", "city", "name"], answer)
        self.write(f"   {answer.choices[0].text}")
        self._cost(answer, started)

    def _stream(self, client: openai.OpenAI, http: httpx.Client) -> None:
        self.write("\n3. Streamed, as it arrives")
        prompt = self._tokenize(http, "Tell me in one sentence why the sky is blue.")
        started = time.monotonic()
        first: float | None = None
        last: Completion | None = None
        self._inline("   ")
        for chunk in client.completions.create(
            model=self.model,
            prompt=prompt,
            max_tokens=48,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        ):
            first = first or time.monotonic()
            self._inline("".join(choice.text for choice in chunk.choices).replace("\n", " "))
            last = chunk
        self._inline("\n")
        _require(last is not None and last.usage is not None, last)
        assert last is not None
        assert first is not None
        self._cost(last, started, f", the first after {1000 * (first - started):.0f} ms")

    def _background(self, client: openai.OpenAI, http: httpx.Client) -> None:
        self.write("\n4. In the background, polled")
        prompt = self._tokenize(http, "Name three animals that live in the desert.")
        started = time.monotonic()
        job: Any = client.completions.create(
            model=self.model,
            prompt=prompt,
            max_tokens=32,
            temperature=0,
            extra_body={"background": True},
        )
        self.write(f"   202 {job.id}: {job.status}")
        while job.status in ("queued", "in_progress"):
            _require(time.monotonic() - started < BACKGROUND_PATIENCE, job)
            response = http.get(f"/v1/completions/{job.id}", params={"wait": POLL_SECONDS})
            job = Completion.model_validate(response.raise_for_status().json())
            self.write(f"   GET /v1/completions/{job.id}: {job.status}")
        _require(job.status == "completed", job)
        self.write(f"   {_one_line(job.choices[0].text)}")
        self._cost(job, started)

    def _crowd(self, http: httpx.Client) -> None:
        self.write(f"\n5. {CROWD} requests at once, a prompt of another length in each")
        prompts = [
            self._tokenize(http, f"Write {index + 1} sentences about {topic}.")
            for index, topic in enumerate(_TOPICS[:CROWD])
        ]
        started = time.monotonic()
        answers = asyncio.run(self._all_at_once(prompts))
        elapsed = time.monotonic() - started
        tokens = sum(answer.usage.completion_tokens for answer in answers if answer.usage)
        _require(all(answer.choices[0].finish_reason for answer in answers), answers[0])
        for topic, answer in list(zip(_TOPICS, answers, strict=True))[:3]:
            self.write(f"   {topic}: {_one_line(answer.choices[0].text)[:80]}...")
        self.write(
            f"   {len(answers)} answers, {tokens} tokens in {elapsed:.2f} s: "
            f"{tokens / elapsed:.0f} tokens/s"
        )

    def _batch(self, client: openai.OpenAI, http: httpx.Client) -> None:
        self.write(f"\n6. A file of {BATCH_LINES} requests as an offline batch")
        started = time.monotonic()
        lines = [self._line(http, topic) for topic in _TOPICS[:BATCH_LINES]]
        content = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=("requests.jsonl", content), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        self.write(f"   {file.id} -> {batch.id}: {batch.status}")
        status = batch.status
        while batch.status in ("validating", "in_progress", "finalizing"):
            _require(time.monotonic() - started < BATCH_PATIENCE, batch)
            time.sleep(0.2)
            batch = client.batches.retrieve(batch.id)
            if batch.status != status and batch.request_counts is not None:
                status = batch.status
                counts = batch.request_counts
                self.write(f"   {status}: {counts.completed} of {counts.total} done")
        _require(batch.status == "completed" and batch.output_file_id is not None, batch)
        assert batch.output_file_id is not None
        assert batch.usage is not None
        answers = client.files.content(batch.output_file_id).text.splitlines()
        _require(len(answers) == BATCH_LINES, batch)
        first = json.loads(answers[0])
        text = first["response"]["body"]["choices"][0]["text"]
        self.write(f"   {first['custom_id']}: {_one_line(text)[:80]}...")
        self.write(
            f"   cost: {batch.usage.input_tokens} prompt + {batch.usage.output_tokens} new tokens, "
            f"{time.monotonic() - started:.1f} s from the upload to the output file"
        )

    def _line(self, http: httpx.Client, topic: str) -> dict[str, Any]:
        prompt = self._tokenize(http, f"Write a sentence about {topic}.")
        body = {"model": self.model, "prompt": prompt, "max_tokens": 16, "temperature": 0}
        return {"custom_id": topic, "method": "POST", "url": "/v1/completions", "body": body}

    async def _all_at_once(self, prompts: list[list[int]]) -> list[Completion]:
        async with openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=self.key, max_retries=0
        ) as client:
            return await asyncio.gather(
                *(
                    client.completions.create(
                        model=self.model,
                        prompt=prompt,
                        max_tokens=CROWD_TOKENS,
                        temperature=0.8,
                        seed=seed,
                    )
                    for seed, prompt in enumerate(prompts)
                )
            )

    # Parts of a scene ------------------------------------------------------------------------

    def _tokenize(self, http: httpx.Client, question: str) -> list[int]:
        """Prompts are token ids; the service's own route makes them from a conversation."""
        body = {"model": self.model, "messages": [{"role": "user", "content": question}]}
        response = http.post("/v1/tokenize", json=body)
        tokens: list[int] = response.raise_for_status().json()["tokens"]
        return tokens

    def _cost(self, answer: Completion, started: float, more: str = "") -> None:
        assert answer.usage is not None
        self.write(
            f"   cost: {answer.usage.prompt_tokens} prompt + {answer.usage.completion_tokens} new "
            f"tokens, {1000 * (time.monotonic() - started):.0f} ms{more}"
        )

    def _inline(self, text: str) -> None:
        print(text, end="", flush=True)


def _require(condition: bool, answer: Any) -> None:
    if not condition:
        raise ShowcaseError(f"this is not what was asked for: {answer!r}")


def _one_line(text: str) -> str:
    return " ".join(text.split())
