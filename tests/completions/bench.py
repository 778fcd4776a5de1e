"""Batches over HTTP, the periodic tasks turned by hand, and a worker without an engine."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from asgiref.sync import async_to_sync
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from completions.jobs.connection import connect
from completions.jobs.sharding.shards import Shards
from completions.jobs.store import JobStore
from completions.maintenance import tasks
from project import celery_app
from tests.completions.fake_worker import FakeWorker

PREFIX = "q:"


def request(custom_id, prompt=(65,), url="/v1/completions", **body):
    body = {"model": "tiny", "prompt": list(prompt), "max_tokens": 2, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(requests):
    return b"".join(
        each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in requests
    )


class Bench:
    """What a client does, what the background worker does, what an engine worker does."""

    def __init__(self, api, client, sent):
        self.api = api
        self.client = client
        self.sent = sent
        """Messages published, in order: job id, model, priority."""
        self.worker = FakeWorker(client, PREFIX)

    def upload(self, requests):
        file = SimpleUploadedFile("in.jsonl", jsonl(requests))
        answer = self.api.post("/v1/files", {"purpose": "batch", "file": file})
        assert answer.status_code == 200, answer.content
        return answer.json()["id"]

    def post(self, path, body=None):
        return self.api.post(path, json.dumps(body or {}), content_type="application/json")

    def create(self, requests, **fields):
        fields = {"endpoint": "/v1/completions", "completion_window": "24h", **fields}
        answer = self.post("/v1/batches", {"input_file_id": self.upload(requests), **fields})
        assert answer.status_code == 200, answer.content
        return answer.json()

    def get(self, batch):
        return self.api.get(f"/v1/batches/{batch['id']}").json()

    def turn(self):
        """One turn of the feeder, with the tasks that it hands over."""
        tasks.advance_batches()

    def work(self, most=None, **ending):
        """Run what was published. Returns how many jobs were to be had."""
        messages = self.sent[:most]
        del self.sent[: len(messages)]
        return sum(self.worker.run(job_id, **ending) for job_id, _, _ in messages)

    def run_to_end(self, batch, **ending):
        for _ in range(50):
            self.turn()
            self.work(**ending)
            seen = self.get(batch)
            if seen["status"] in ("completed", "failed", "expired", "cancelled"):
                return seen
        raise AssertionError(seen)

    def lines(self, file_id):
        answer = self.api.get(f"/v1/files/{file_id}/content")
        assert answer.status_code == 200, answer.content

        async def read():
            return b"".join([chunk async for chunk in answer.streaming_content])

        # str ends lines at U+0085, U+2028 and U+2029 too, as many clients do.
        return [json.loads(line) for line in async_to_sync(read)().decode().splitlines()]


@contextmanager
def open_bench(api: Client, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """The bench over the Redis of a URL; messages are kept, and tasks run where they are sent."""
    client = connect(url)
    sent: list[tuple[object, ...]] = []
    shards = Shards.make_single(JobStore(client, PREFIX))
    monkeypatch.setattr(tasks, "_shards", lambda: shards)
    monkeypatch.setattr(tasks, "dispatch", lambda *message: sent.append(message))
    monkeypatch.setattr(tasks, "FEED_SECONDS", 0.01)
    monkeypatch.setattr(tasks, "FEED_PAUSE", 0.01)
    celery_app.conf.task_always_eager = True
    yield Bench(api, client, sent)
    celery_app.conf.task_always_eager = False
    client.close()
