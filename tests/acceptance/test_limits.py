"""Two web processes and one key: its limits hold as if there were one, and what a killed process
held is free again."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from typing import Any

import httpx
import pytest

from tests.acceptance.service import MODEL, ROOT, free_port

pytestmark = [pytest.mark.acceptance, pytest.mark.wide]

CALL = {"model": MODEL, "prompt": [9703], "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def second(scripted):
    """Another web process of the same installation: its address, and how to kill it."""
    port = free_port()
    with (scripted.home / "second.out").open("wb") as output:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "uvicorn", "project.asgi:application", "--port", str(port),
                "--loop", "uvloop", "--http", "httptools", "--no-access-log", "--no-proxy-headers",
            ],
            cwd=ROOT, stdout=output, stderr=output,
            env={**scripted.environment, "DJANGO_SETTINGS_MODULE": "project.settings"},
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 240
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/healthz").status_code == 200:
                break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield url, process
    process.kill()
    process.wait()


def new_key(scripted, *options: str) -> str:
    return scripted.manage("create_api_key", "limited", *options).strip()


async def posted(urls, key, count, **call):
    """Send ``count`` requests to the addresses in turn. Returns the answers and their seconds."""
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(headers=headers, timeout=240, limits=limits) as client:
        began = time.monotonic()
        answers = await asyncio.gather(
            *(
                client.post(f"{urls[i % len(urls)]}/v1/completions", json={**CALL, **call})
                for i in range(count)
            )
        )
        return answers, time.monotonic() - began


def used(answers):
    """Return the prompt and completion tokens of the successful answers."""
    given = [answer.json()["usage"] for answer in answers if answer.status_code == 200]
    return [sum(usage[name] for usage in given) for name in ("prompt_tokens", "completion_tokens")]


@pytest.mark.long
def test_requests_and_tokens_per_minute(scripted, second) -> None:
    """The buckets refill during the run, and exactly as much more is admitted. The recorded usage
    is that of the answers, although the background worker is killed meanwhile."""
    urls = [scripted.url, second[0]]
    for options, per_minute, call, count in (
        (("--rpm", "60"), 60, {"max_tokens": 1}, 120),
        (("--tpm", "300"), 60, {"max_tokens": 4}, 100),  # five tokens each
    ):
        key = new_key(scripted, *options)
        answers, seconds = asyncio.run(posted(urls, key, count, **call))
        statuses = [answer.status_code for answer in answers]
        others = [answer.text for answer in answers if answer.status_code not in (200, 429)]
        assert set(statuses) == {200, 429}, others
        assert per_minute <= statuses.count(200) <= per_minute * (1 + seconds / 60) * 1.01
        refused = [answer for answer in answers if answer.status_code == 429]
        assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
        scripted.kill("cpu-worker")
        with scripted.http(key) as client:
            deadline = time.monotonic() + 240
            while (recorded := sums(client)) != [statuses.count(200), *used(answers)]:
                assert time.monotonic() < deadline, (recorded, statuses.count(200), used(answers))
                time.sleep(0.2)


def sums(client: httpx.Client) -> list[int]:
    """Requests, prompt tokens and completion tokens of the key so far."""
    names = ("num_model_requests", "input_tokens", "output_tokens")
    buckets = client.get("/v1/usage").raise_for_status().json()["data"]
    rows = [row for bucket in buckets for row in bucket["results"]]
    return [sum(row[name] for row in rows) for name in names]


def test_a_budget_is_not_overspent(scripted, second) -> None:
    key = new_key(scripted, "--daily-token-budget", "100")
    answers, _ = asyncio.run(posted([scripted.url, second[0]], key, 40, max_tokens=4))
    statuses = [answer.status_code for answer in answers]
    assert statuses.count(200) == 100 // 5
    refused = next(answer for answer in answers if answer.status_code == 429)
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert refused.headers["x-should-retry"] == "false"
    assert "100 tokens a day" in error["message"]


@pytest.mark.long
def test_places_of_a_killed_process_are_free_again(scripted, second) -> None:
    """Last in this file: it kills the second process."""
    url, process = second
    key = new_key(scripted, "--max-concurrency", "3")
    long = {"max_tokens": 3000, "stream": True}

    async def crowd() -> list[int]:
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            httpx.AsyncClient(headers=headers, timeout=240) as client,
            contextlib.AsyncExitStack() as stack,
        ):

            def begin(each: str) -> Coroutine[Any, Any, httpx.Response]:
                call = client.stream("POST", f"{each}/v1/completions", json={**CALL, **long})
                return stack.enter_async_context(call)

            # Together: on a slow machine, the first could end before the last begins.
            streams = await asyncio.gather(*(begin(url) for _ in range(4)))
            streams.append(await begin(scripted.url))
            os.kill(process.pid, signal.SIGKILL)
            return [stream.status_code for stream in streams]

    assert sorted(asyncio.run(crowd())) == [200, 200, 200, 429, 429]
    with scripted.http(key) as client:
        deadline = time.monotonic() + 240
        while True:
            answer = client.post("/v1/completions", json={**CALL, "max_tokens": 1})
            if answer.status_code == 200:
                break
            assert answer.json()["error"]["code"] == "concurrency_limit_exceeded"
            assert time.monotonic() < deadline
            time.sleep(0.2)
