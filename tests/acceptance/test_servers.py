"""The same installation on PostgreSQL and Redis, where they answer."""

import json
import os
import time
import uuid

import pytest
import redis

from benchmarks.service.scripted_worker import token
from tests.acceptance.conftest import STEP
from tests.acceptance.service import MODEL, ScriptedInstallation, ended_job
from tests.postgresql import new_database

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

ENDED = ("completed", "failed", "expired", "cancelled")
REDIS_URL = os.environ.get("TEST_REDIS_URL", "redis://127.0.0.1:6379/9")


@pytest.fixture
def postgres():
    """The URL of a database of this test alone."""
    with new_database() as url:
        yield url


@pytest.fixture
def redis_prefix():
    """A key prefix of this test alone."""
    client = redis.Redis.from_url(REDIS_URL, socket_timeout=3)
    try:
        client.ping()
    except redis.RedisError as error:
        pytest.skip(f"no Redis at TEST_REDIS_URL: {error}")
    prefix = f"quire-{uuid.uuid4().hex[:12]}:"
    yield prefix
    if keys := list(client.scan_iter(f"{prefix}*")):
        client.delete(*keys)
    client.close()


def test_the_path_on_postgresql_and_redis(tmp_path, postgres, redis_prefix):
    servers = {
        "DATABASE_URL": postgres,
        "REDIS_URL": REDIS_URL,
        "QUIRE_REDIS_PREFIX": redis_prefix,
    }
    with (
        ScriptedInstallation(tmp_path, STEP, **servers) as service,
        service.client() as client,
    ):
        assert not (tmp_path / "run" / "valkey.pid").exists()
        assert not (tmp_path / "quire.sqlite3").exists()
        completion = client.completions.create(model=MODEL, prompt=[9703], max_tokens=2, seed=3)
        assert completion.choices[0].text == chr(token(3, 0, 0)) + chr(token(3, 0, 1))
        with service.http() as http:
            call = {"model": MODEL, "prompt": [9703], "max_tokens": 4, "background": True}
            location = http.post("/v1/completions", json=call).headers["Location"]
            assert ended_job(http, location)["status"] == "completed"
        run_a_batch(client)


def run_a_batch(client, count=20):
    """Files and a batch as the official client sees them: locks and bulk writes of SQL."""
    lines = [
        {
            "custom_id": f"r{number}", "method": "POST", "url": "/v1/completions",
            "body": {"model": MODEL, "prompt": [9703, number], "max_tokens": 4},
        }
        for number in range(count)
    ]  # fmt: skip
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert client.files.content(file.id).content == content
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    deadline = time.monotonic() + 300
    while (batch := client.batches.retrieve(batch.id)).status not in ENDED:
        assert time.monotonic() < deadline, batch
        time.sleep(0.2)
    assert batch.status == "completed", batch
    assert (batch.request_counts.completed, batch.request_counts.failed) == (count, 0)
    output = client.files.content(batch.output_file_id).text.splitlines()
    assert [json.loads(line)["custom_id"] for line in output] == [f"r{n}" for n in range(count)]
    client.files.delete(file.id)
    assert file.id not in [each.id for each in client.files.list()]
