"""Calls of the Responses API, what they answer, and the runs of their jobs."""

import json
from typing import Any

from completions.catalog import model_files
from completions.contract.job_request import decode_job_request
from completions.contract.usage import Usage
from completions.jobs.events import ChoiceEvent
from completions.jobs.execute import Ending, StepEvent
from tests.completions.live_api import Live

PATH = "/v1/responses"


async def read(response: Any) -> Any:
    if response.streaming:
        return b"".join([part async for part in response.streaming_content]).decode()
    return json.loads(response.content)


def code(response: Any, status: int) -> tuple[str, str | None]:
    assert response.status_code == status, response.content
    error = json.loads(response.content)["error"]
    return error["code"], error["param"]


async def post(live: Live, path: str = PATH, **body: Any) -> Any:
    body = body if path != PATH else {"model": "tiny", "input": "Hi", "max_output_tokens": 2} | body
    headers = {"Idempotency-Key": body.pop("key")} if "key" in body else {}
    return await live.http.post(
        path, json.dumps(body), content_type="application/json", headers=headers
    )


async def create(live: Live, **body: Any) -> dict[str, Any]:
    response = await post(live, **body)
    assert response.status_code == 200, response.content
    made: dict[str, Any] = await read(response)
    return made


async def get(live: Live, path: str) -> Any:
    response = await live.http.get(path)
    assert response.status_code == 200, response.content
    return await read(response)


def events(text: str) -> list[dict[str, Any]]:
    *frames, last = text.strip().split("\n\n")
    assert last == "data: [DONE]"
    pairs = [frame.split("\n") for frame in frames]
    bodies = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name for name, _ in pairs] == [f"event: {body['type']}" for body in bodies]
    return bodies


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def prompt_of(live: Live, job_id: str) -> str:
    """The prompt of a job that was not claimed yet."""
    raw: Any = live.redis.hget(f"j:job:{job_id}", "request")
    (ids,) = decode_job_request(raw).prompts
    entry = model_files.load_catalog().get("tiny")
    assert entry is not None
    return model_files.load(entry).tokenizer.decode(ids)


def run(live: Live, job_id: str, *texts: str, reason: str = "stop") -> None:
    """Run a job whose answer comes in these pieces."""
    claim = live.worker.claim(job_id)
    steps = [
        StepEvent(
            job_id, claim.attempt, number,
            [ChoiceEvent(0, [65], text, reason if number == len(texts) else None)],
        )
        for number, text in enumerate(texts, 1)
    ]  # fmt: skip
    end = Ending(job_id, claim.attempt, len(texts) + 1, "completed", None, Usage(3, len(texts), 1))
    live.worker.execution.publish(steps, [end])
