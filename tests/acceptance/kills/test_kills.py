"""kill -9 of every process at its worst moment: what was acknowledged is done, and done once."""

import json
import os
import shutil
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.service.scripted_worker import HANG, token
from completions.jobs.connection import connect
from tests.acceptance.service import MODEL, Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.wide]

LINES = 300
TOKENS = 30
ENDED = ("completed", "failed", "expired", "cancelled")


def create_batch(client, count):
    requests = [
        {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {
                "model": MODEL, "prompt": [number % (HANG - 1) + 1], "max_tokens": TOKENS,
                "seed": number, "return_token_ids": True,
            },
        }
        for number in range(count)
    ]  # fmt: skip
    content = "\n".join(map(json.dumps, requests)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )


def until(condition, timeout=300.0):
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
    return found


def ended(client, batch):
    def look():
        seen = client.batches.retrieve(batch.id)
        return seen if seen.status in ENDED else None

    return until(look)


def done(client, batch, count):
    return until(lambda: client.batches.retrieve(batch.id).request_counts.completed >= count)


def require_every_answer_once(service, client, batch, count):
    """Each custom_id once, with exactly its tokens, and usage is the sum."""
    assert batch.status == "completed", batch
    answers = [
        json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()
    ]
    assert Counter(a["custom_id"] for a in answers) == {f"r{n}": 1 for n in range(count)}
    for number, answer in enumerate(answers):
        (choice,) = answer["response"]["body"]["choices"]
        assert choice["token_ids"] == [token(number, 0, k) for k in range(TOKENS)]
    assert batch.usage.output_tokens == count * TOKENS
    script = (
        "from completions.models import UsageRecord as U; from django.db.models import Sum;"
        f"rows = U.objects.filter(job_id__contains='{batch.id.removeprefix('batch_')}');"
        "print(rows.count(), rows.aggregate(n=Sum('completion_tokens'))['n'])"
    )
    assert service.manage("shell", "-v0", "-c", script).split() == [
        str(count), str(count * TOKENS),
    ]  # fmt: skip


@pytest.mark.long
def test_a_batch_survives_its_workers(scripted):
    """The engine worker is killed twice and the background worker once."""
    with scripted.client() as client:
        batch = create_batch(client, LINES)
        done(client, batch, LINES // 10)
        scripted.kill_worker()
        done(client, batch, LINES // 4)
        scripted.kill_worker()
        scripted.kill("cpu-worker")
        require_every_answer_once(scripted, client, ended(client, batch), LINES)


@pytest.mark.long
def test_an_emptied_redis_loses_nothing_that_was_acknowledged(scripted):
    """40 background jobs and 100 lines wait when Redis is killed and all its data deleted."""
    scripted.stop_worker()
    call = {"model": MODEL, "prompt": [7], "max_tokens": TOKENS, "background": True}
    with scripted.client() as client, scripted.http() as http:
        locations = [
            http.post("/v1/completions", json={**call, "seed": seed}).headers["Location"]
            for seed in range(40)
        ]
        batch = create_batch(client, 100)
        until(lambda: client.batches.retrieve(batch.id).status == "in_progress")
        scripted.kill("valkey")
        for entry in (scripted.home / "valkey").iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
        scripted.start_worker()
        scripted.wait_ready()
        for seed, location in enumerate(locations):
            body = until(lambda at=location: completed(http, at))
            assert "".join(map(chr, tokens(seed))) == body["choices"][0]["text"]
        require_every_answer_once(scripted, client, ended(client, batch), 100)


def tokens(seed):
    return [token(seed, 0, k) for k in range(TOKENS)]


def completed(http, location):
    answer = http.get(location, params={"wait": 5})
    if answer.status_code == 503:  # Redis is not back yet
        return None
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["status"] in ("queued", "in_progress", "completed"), body
    return body if body["status"] == "completed" else None


def test_a_stream_is_resumed_on_another_web_process(scripted):
    call = {"model": MODEL, "prompt": [7], "max_tokens": 100, "seed": 3, "background": True}
    call |= {"stream": True, "return_token_ids": True}
    seen = []
    with scripted.http() as http:
        with http.stream("POST", "/v1/completions", json=call) as response:
            location = response.headers["Location"]
            for line in response.iter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: ")))
                if len(seen) == 10:
                    break
            victim = scripted.pid("web")
            os.kill(victim, signal.SIGKILL)
        scripted.pid("web", besides=victim)
        scripted.wait_ready()
        last = seen[-1]["sequence_number"]
        rest = http.get(location, params={"stream": "true", "starting_after": last}).text
    frames = [line.removeprefix("data: ") for line in rest.splitlines() if line]
    assert frames.pop() == "[DONE]"
    seen += [json.loads(frame) for frame in frames if not frame.startswith(":")]
    assert [chunk["sequence_number"] for chunk in seen] == list(range(1, 101))
    ids = [i for chunk in seen for i in chunk["choices"][0]["token_ids"]]
    assert ids == [token(3, 0, k) for k in range(100)]


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
        with connect(scripted.redis_url) as redis:
            # The append-only file is written every second.
            assert redis.execute_command("WAITAOF", 1, 0, 60_000)[0] == 1
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
