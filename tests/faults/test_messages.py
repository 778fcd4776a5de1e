"""Messages and jobs of other versions, or of nobody: refused or understood; the worker lives."""

import base64
import json
import pickle
import time
import uuid

import pytest

from completions.jobs.connection import connect
from tests.acceptance.service import MODEL
from tests.faults.invariants import until
from tests.faults.traffic import tokens

pytestmark = pytest.mark.faults

QUEUE = f"quire:gen.{MODEL}"


class Trap:
    """Unpickled, it would write a file."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return (open, (self._path, "w"))


def message(body: bytes, task="workers.tasks.generate", content_type="application/json"):
    """As kombu lays it into Redis."""
    name = str(uuid.uuid4())
    return json.dumps(
        {
            "body": base64.b64encode(body).decode(),
            "content-encoding": "binary" if "python" in content_type else "utf-8",
            "content-type": content_type,
            "headers": {"lang": "py", "task": task, "id": name, "root_id": name,
                        "parent_id": None, "group": None, "argsrepr": "", "kwargsrepr": ""},
            "properties": {"correlation_id": name, "reply_to": name, "delivery_mode": 2,
                           "delivery_info": {"exchange": "", "routing_key": f"gen.{MODEL}"},
                           "priority": 0, "body_encoding": "base64", "delivery_tag": name},
        }
    )  # fmt: skip


def arguments(*args, **kwargs) -> bytes:
    return json.dumps([args, kwargs, {"callbacks": None}]).encode()


def test_foreign_messages_hurt_nobody(scripted, tmp_path):
    trapped = tmp_path / "unpickled"
    worker = scripted.worker_pid
    client = connect(scripted.redis_url)
    pickled = pickle.dumps([[Trap(str(trapped))], {}, {}])
    for foreign in (
        message(pickled, content_type="application/x-python-serialize"),
        message(arguments("cmpl-unknown")),
        message(arguments("cmpl-1"), task="workers.tasks.of_another_version"),
        message(arguments()),
        message(arguments("cmpl-1", "and more")),
        message(arguments(job_id="cmpl-1")),
        message(arguments({"an": "object"})),
        message(b"{not json"),
    ):  # fmt: skip
        client.lpush(QUEUE, foreign)
    client.close()
    with scripted.http() as http:
        body = {
            "model": MODEL,
            "prompt": [7],
            "max_tokens": 30,
            "seed": 5,
            "return_token_ids": True,
        }
        answer = http.post("/v1/completions", json=body)  # it waits behind them
        assert answer.json()["choices"][0]["token_ids"] == tokens(5)
    assert not trapped.exists()
    assert scripted.worker_pid == worker
    assert scripted.worker_runs()


def test_a_job_of_another_version_fails_with_a_word(scripted):
    """Its request has a field that this worker's engine does not know."""
    client = connect(scripted.redis_url)
    job_id = f"cmpl-{uuid.uuid4().hex}"
    now = time.time()
    client.hset(
        f"quire:job:{job_id}",
        mapping={
            "state": "queued", "kind": "background", "model": MODEL, "organization": 1, "key": 1,
            "attempt": 0, "losses": 0, "seq": 1, "created": now, "deadline": now + 60, "ttl": 600,
            "priority": 6, "web": "", "kept": 0, "view": "{}", "prompt_tokens": 1,
            "request": json.dumps({"prompts": [[7]], "sampling": {"of_another_version": 1}}),
        },
    )  # fmt: skip
    client.zadd("quire:open", {job_id: now})  # the reconciler publishes it
    until(lambda: client.hget(f"quire:job:{job_id}", "state") == b"failed", "the job fails")
    assert b"Malformed job" in client.hget(f"quire:job:{job_id}", "error")
    client.close()
    assert scripted.worker_runs()
