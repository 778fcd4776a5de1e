"""What SQLite takes and PostgreSQL does not: U+0000, wherever a client may write it."""

import json
from collections.abc import Callable

import httpx
import pytest

from completions.jobs.connection import connect
from tests.acceptance.kills.test_kills import create_batch, ended, require_every_answer_once
from tests.acceptance.service import MODEL, ScriptedInstallation
from tests.faults.invariants import until
from tests.faults.postgres import PrivatePostgres

pytestmark = pytest.mark.faults

CALL = {"model": MODEL, "prompt": [7], "max_tokens": 2}
HARMFUL = {
    "stop": ["\0"], "stop_regex": ["\0a"], "user": "\0", "cache_salt": "\0", "regex": "\0?a",
    "dry_sequence_breakers": ["\0"], "dry_multiplier": 1.0, "metadata": {"\0": "\0"}, "rid": "\0",
    "suffix": "\0", "json_schema": {"enum": ["\0"]}, "lora_path": "\0", "b\0": 1,
}  # fmt: skip
LINES = (
    {"custom_id": "a", "c\0": 1},
    {"custom_id": "a\0"},
    {"custom_id": "a", "body": {**CALL, "d\0": 1}},
    {"custom_id": "a", "body": {**CALL, "model": "\0"}},
    {"custom_id": "a", "body": {**CALL, "stop": "\0"}},
    {"custom_id": "a", "url": "/\0"},
)


@pytest.fixture
def service(tmp_path):
    with (
        PrivatePostgres.running() as server,
        ScriptedInstallation(tmp_path, 0.01, DATABASE_URL=server.url) as service,
    ):
        yield service


def once_there_is_room(call: Callable[[], httpx.Response]) -> httpx.Response:
    """The first answer but for refusals that ask to come again."""
    return until(lambda: (a := call()).status_code != 503 and a, "there is room")


def test_a_cancelled_job_alone_is_settled(service):
    """The sums of its hour begin with what it counts, and PostgreSQL adds no booleans."""
    redis = connect(service.redis_url)
    with service.http() as http:
        long = {**CALL, "max_tokens": 1000, "background": True}
        job = http.post("/v1/completions", json=long).json()
        http.post(f"/v1/completions/{job['id']}/cancel").raise_for_status()
        until(
            lambda: http.get(f"/v1/completions/{job['id']}").json()["status"] == "cancelled",
            "it is cancelled",
        )
        until(lambda: redis.xlen("quire:usage") == 0, "it is settled")
        (bucket,) = [b for b in http.get("/v1/usage").json()["data"] if b["results"]]
    redis.close()
    assert bucket["results"][0]["num_model_requests"] == 1


def test_null_characters_do_not_delay_other_jobs(service):
    """Each request is run or refused, and all that others did is settled and validated after it."""
    with service.http() as http, service.client() as client:
        for name, value in HARMFUL.items():
            for more in ({}, {"background": True}, {"stream": True}):
                body = {**CALL, **more, name: value}
                answer = once_there_is_room(lambda b=body: http.post("/v1/completions", json=b))
                assert answer.status_code < 500, (body, answer.text)
        batches = []
        for line in LINES:
            whole = {"method": "POST", "url": "/v1/completions", "body": CALL, **line}
            content = json.dumps(whole).encode()
            file = client.files.create(file=("a.jsonl", content), purpose="batch")
            batches.append(client.batches.create(
                input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
            ))  # fmt: skip
        for harmful in (
            {"input_file_id": "file-\0"}, {"metadata": {"a": "\0"}}, {"completion_window": "\0"},
            {"endpoint": "\0"}, {"\0": 1},
        ):  # fmt: skip
            body = {"input_file_id": "file-1", "endpoint": "/v1/completions", **harmful}
            answer = http.post("/v1/batches", json=body)
            assert 400 <= answer.status_code < 500, (body, answer.text)
        for query in ("after=%00", "limit=%00", "a%00=1"):
            assert http.get(f"/v1/files?{query}").status_code == 400
        require_every_answer_once(service, client, ended(client, create_batch(client, 5)), 5)
        for batch in batches:
            assert ended(client, batch).status in ("failed", "completed")
    redis = connect(service.redis_url)
    until(lambda: redis.xlen("quire:usage") == 0, "every job is settled")
    redis.close()
