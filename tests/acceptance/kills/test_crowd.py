"""Many at once, and processes that are killed under them."""

import asyncio
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.service import MODEL, Installation
from tests.acceptance.small_model import SMALL

pytestmark = pytest.mark.acceptance


async def test_64_concurrent_requests_of_different_lengths_each_get_their_own(service):
    service.wait_served(SMALL)
    letters = [65 + place * place % 60 for place in range(256)]
    digits = "0123456789"
    async with service.async_client() as client:

        async def ask(number: int):
            answer = f"{number:03d}"
            completion = await client.completions.create(
                model=SMALL,
                prompt=letters[: 1 + number * 4],
                max_tokens=12,
                extra_body={"ebnf": f'root ::= "{answer}" [{digits}]'},
            )
            return number, completion

        for number, completion in await asyncio.gather(*map(ask, range(64))):
            assert completion.choices[0].text.startswith(f"{number:03d}")
            assert completion.choices[0].finish_reason == "stop"
            assert completion.usage.prompt_tokens == 1 + number * 4


async def crowd(service: Installation, prompt: list[int], strike) -> tuple[list, list]:
    """Four streams and four answers of 150 tokens, in the midst of which something strikes."""
    call = {"model": MODEL, "prompt": prompt, "max_tokens": 150, "temperature": 0.9}
    async with service.async_client(timeout=120) as client:

        async def stream(seed: int):
            numbers, ids = [], []
            async for chunk in await client.completions.create(
                **call, seed=seed, stream=True,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            ):  # fmt: skip
                numbers.append(chunk.sequence_number)
                ids += chunk.choices[0].token_ids
            return numbers, ids

        async def answer(seed: int):
            return await client.completions.create(
                **call, seed=seed, extra_body={"ignore_eos": True}
            )

        streams = [asyncio.create_task(stream(seed)) for seed in range(4)]
        answers = [asyncio.create_task(answer(seed)) for seed in range(4)]
        await asyncio.sleep(1.5)
        strike()
        return await asyncio.gather(*streams), await asyncio.gather(*answers)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_or_stopped_worker_loses_and_repeats_nothing(
    service: Installation, tokenize, number
):
    """Streams and answers run when the worker is killed, or stopped with little grace."""
    victim = service.pid("worker")
    streamed, answered = asyncio.run(
        crowd(service, tokenize("The old man"), lambda: os.kill(victim, number))
    )
    service.pid("worker", besides=victim)  # its jobs may all end within the grace it has
    for numbers, ids in streamed:
        assert numbers == list(range(1, len(numbers) + 1))  # no gap, no repeat
        assert len(ids) == 150
    for completion in answered:
        assert completion.usage.completion_tokens == 150
    ids = [completion.id for completion in answered]
    script = (
        "from completions.models import UsageRecord as U;"
        f"print(sorted(U.objects.filter(job_id__in={ids})"
        ".values_list('completion_tokens', flat=True)))"
    )
    deadline = time.monotonic() + 240
    while (rows := service.manage("shell", "-v0", "-c", script).strip()) != str([150] * 4):
        assert time.monotonic() < deadline, rows


def test_a_killed_redis_restarts_with_its_jobs(scripted: Installation):
    with scripted.http() as http:
        call = {
            "model": MODEL,
            "prompt": [7],
            "max_tokens": 100,
            "background": True,
        }
        locations = [
            http.post("/v1/completions", json={**call, "seed": seed}).headers["Location"]
            for seed in range(6)
        ]
        time.sleep(1.2)  # the append-only file is written every second
        scripted.kill("valkey")
        deadline = time.monotonic() + 240
        while http.get(locations[0]).status_code == 503:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for location in locations:
            while (polled := http.get(location, params={"wait": 10})).status_code == 503:
                assert time.monotonic() < deadline
            while polled.json()["status"] in ("queued", "in_progress"):
                assert time.monotonic() < deadline
                polled = http.get(location, params={"wait": 10})
            body = polled.json()
            assert body["status"] == "completed", body
            assert body["usage"]["completion_tokens"] <= 100


def test_a_stopping_web_process_ends_its_streams_with_an_error(scripted: Installation):
    call = {"model": MODEL, "prompt": [7], "max_tokens": 2000, "ignore_eos": True}
    waits = {"Prefer": "wait=60"}
    with scripted.http() as http, ThreadPoolExecutor(2) as pool:
        job = http.post("/v1/completions", json={**call, "background": True}).headers["Location"]
        polling = pool.submit(http.get, job, params={"wait": 30})
        waiting = pool.submit(
            http.post, "/v1/completions", json={**call, "background": True}, headers=waits
        )
        deadline = time.monotonic() + 60
        while http.get("/v1/completions", params={"limit": 1}).json()["data"][0]["id"] in job:
            assert time.monotonic() < deadline, "the second job did not come"
            time.sleep(0.05)
        with http.stream("POST", "/v1/completions", json={**call, "stream": True}) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            os.kill(scripted.pid("web"), signal.SIGTERM)
            *_, last_frame, done = [line for line in lines if line.startswith("data: ")]
        assert done == "data: [DONE]"
        last = json.loads(last_frame.removeprefix("data: "))
        assert last["error"]["code"] == "server_shutting_down"
        assert (polling.result().status_code, waiting.result().status_code) == (200, 202)
        scripted.wait_ready()
        for location in (job, waiting.result().headers["Location"]):  # they go on meanwhile
            assert http.post(f"{location}/cancel").status_code == 200
