"""Messages and jobs that another version or another program wrote: the worker survives them."""

import base64
import json
import pickle
import time
import uuid

import pytest

from completions.jobs.connection import connect
from tests.acceptance.service import MODEL, ended_job
from tests.faults.invariants import PATIENCE, until
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
    """A message in the form that kombu stores in Redis."""
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


def test_foreign_messages_do_not_stop_the_worker(scripted, tmp_path):
    trapped = tmp_path / "unpickled"
    worker, cpu_worker = scripted.worker_pid, scripted.pid("cpu-worker")
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
        message(b"[]"),
        message(b"7"),
        message(b"{}"),
        message(arguments("cmpl-1"), task="celery.group"),
        message(arguments("cmpl-1"), task=["a", "list"]),
        message(arguments("cmpl-1")).replace("base64", "of_another_version"),
        message(arguments("cmpl-1")).replace('"id"', '"name"'),
        message(arguments("cmpl-1")).replace('"root_id"', '"timelimit": 7, "root_id"'),
        "not JSON",
        "[" * 100_000,
        "{}",
        '{"properties": {}}',
        "7",
        b"\xff",
    ):  # fmt: skip
        client.lpush(QUEUE, foreign)
        client.lpush("quire:cpu", foreign)
    until(lambda: not client.exists("quire:cpu"), "the background worker has read them")
    client.close()
    with scripted.http() as http:
        body = {
            "model": MODEL,
            "prompt": [7],
            "max_tokens": 30,
            "seed": 5,
            "return_token_ids": True,
        }
        answer = http.post("/v1/completions", json=body)  # queued behind them
        assert answer.json()["choices"][0]["token_ids"] == tokens(5)
    assert not trapped.exists()
    assert scripted.pid("cpu-worker") == cpu_worker
    assert scripted.worker_pid == worker
    assert scripted.worker_runs()


RECORD = {
    "state": "queued", "kind": "background", "model": MODEL, "organization": 1, "key": 1,
    "attempt": 0, "losses": 0, "seq": 1, "ttl": 600, "priority": 6, "web": "", "kept": 0,
    "view": "{}", "prompt_tokens": 1,
}  # fmt: skip
UNKNOWN, MISSING, WRONG = (
    {"prompts": [[7]], "sampling": {"of_another_version": 1}},
    {"sampling": {}},
    {"prompts": [[7]], "sampling": {"logit_bias": [5]}},
)


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (json.dumps(UNKNOWN), b"`of_another_version`"),
        (
            json.dumps({"prompts": [[7]], "sampling": {}, "of_another_version": 1}),
            b"`of_another_version`",
        ),
        (json.dumps(MISSING), b"has no prompts"),
        (json.dumps(WRONG), b"logit_bias"),
        (json.dumps({"prompts": [7], "sampling": {}}), b"prompts"),
        (json.dumps([UNKNOWN]), b"Expected `object`"),
        ("{no json", b"malformed"),
    ],
)
def test_a_malformed_job_fails_alone_and_its_error_says_why(scripted, request_, word):
    """A job whose request this worker cannot read fails; a job beside it completes."""
    worker, now = scripted.worker_pid, time.time()
    client = connect(scripted.redis_url)
    job_id = f"cmpl-{uuid.uuid4().hex}"
    times = {"created": now, "deadline": now + PATIENCE}
    client.hset(f"quire:job:{job_id}", mapping={**RECORD, **times, "request": request_})
    with scripted.http() as http:
        call = {"model": MODEL, "prompt": [7], "max_tokens": 200, "background": True}
        beside = http.post("/v1/completions", json=call).headers["Location"]
        client.lpush(QUEUE, message(arguments(job_id)))
        until(lambda: client.hget(f"quire:job:{job_id}", "state") == b"failed", "it fails")
        error = client.hget(f"quire:job:{job_id}", "error")
        assert b"worker_error" in error
        assert b"Malformed job: " in error
        assert word in error
        assert ended_job(http, beside)["status"] == "completed"
    client.close()
    assert scripted.worker_pid == worker
    assert scripted.worker_runs()
