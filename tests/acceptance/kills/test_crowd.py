"""Many requests to real engines at once, and kills of those engines."""

import asyncio
import json
import os
import signal
import time

import pytest

from tests.acceptance.service import MODEL, Installation
from tests.acceptance.small_model import SMALL
from tests.running import until

pytestmark = [pytest.mark.acceptance, pytest.mark.wide]

SMALL_WORKER = "worker-2"
"""The process of the second model in models.toml."""


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
    begun: set[int] = set()
    async with service.async_client(timeout=120) as client:

        async def stream(seed: int):
            numbers, ids = [], []
            async for chunk in await client.completions.create(
                **call, seed=seed, stream=True,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            ):  # fmt: skip
                numbers.append(chunk.sequence_number)
                begun.add(seed)
                ids += chunk.choices[0].token_ids
            return numbers, ids

        async def answer(seed: int):
            return await client.completions.create(
                **call, seed=seed, extra_body={"ignore_eos": True}
            )

        streams = [asyncio.create_task(stream(seed)) for seed in range(4)]
        answers = [asyncio.create_task(answer(seed)) for seed in range(4)]
        await until(lambda: len(begun) == len(streams))
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


def test_streams_continue_with_the_same_tokens_after_a_worker_is_killed(service, http):
    """Four streams of the small model, which computes in float32, killed half-way. Two of them are
    constrained."""
    calls = [
        {"model": SMALL, "prompt": [9, 28, 100 + n], "max_tokens": 200, "seed": 32 + n}
        | {"background": True, "return_token_ids": True, "temperature": 0.8, "top_k": 5}
        | constraint
        for n, constraint in enumerate([{"ignore_eos": True}, {"regex": "[a-z ]{2000,3000}"}] * 2)
    ]
    service.wait_served(SMALL)
    victim = service.pid(SMALL_WORKER)
    unbroken = run_all(http, calls)
    broken = run_all(http, calls, lambda: service.kill(SMALL_WORKER))
    assert broken == unbroken
    assert service.pid(SMALL_WORKER, besides=victim)


def run_all(http, calls, strike=None):
    """Token ids of each stream, whose sequence numbers have neither gap nor repeat."""
    locations = [http.post("/v1/completions", json=call).headers["Location"] for call in calls]
    if strike is not None:
        with http.stream("GET", locations[0], params={"stream": "true"}) as response:
            lines = (line for line in response.iter_lines() if line.startswith("data: "))
            for _ in range(15):
                next(lines)
            strike()
    streams = []
    for location in locations:
        text = http.get(location, params={"stream": "true"}).text
        frames = [line.removeprefix("data: ") for line in text.splitlines() if line[:5] == "data:"]
        assert frames.pop() == "[DONE]"
        chunks = [json.loads(frame) for frame in frames]
        numbers = [chunk["sequence_number"] for chunk in chunks]
        assert numbers == list(range(1, len(numbers) + 1))
        streams.append([i for chunk in chunks for i in chunk["choices"][0]["token_ids"]])
    assert all(len(ids) == 200 for ids in streams)
    return streams
