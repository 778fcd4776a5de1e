"""Requests with something broken in them, by the thousand: no 5xx, but for a 503 that says when to
come again, no refusal without an envelope, no process that ends, nothing in the log that nobody
foresaw.

QUIRE_FUZZED_REQUESTS says how many, QUIRE_FAULT_SEED which, QUIRE_FIRST_FUZZED the number to begin
with.
"""

import json
import os
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse

import pytest

from completions.jobs.connection import connect
from tests.acceptance.hostile.fuzz import Fuzzed, Target, fuzzed
from tests.acceptance.hostile.fuzz import http as raw_request
from tests.acceptance.hostile.fuzzed_bodies import CALL
from tests.acceptance.service import MODEL

pytestmark = pytest.mark.faults

COUNT = int(os.environ.get("QUIRE_FUZZED_REQUESTS", "400"))
SEED = int(os.environ.get("QUIRE_FAULT_SEED", "1"))
FIRST = int(os.environ.get("QUIRE_FIRST_FUZZED", "0"))
AT_ONCE = 8
PATIENCE = 400.0
API_PATHS = (b"/v1/", b"/generate", b"/inference/v1/")
SILENCE = 3.0
"""Seconds to wait for an answer if the request may be incomplete."""
PROCESSES = ("web", "worker", "cpu-worker", "valkey")
UNFORESEEN = ("unhandled", "Traceback", "Exception in ASGI", "worker_error", "engine_error")
ENDED = ("completed", "failed", "expired", "cancelled")


@dataclass(frozen=True)
class Answer:
    """An answer. Status 0 stands for no answer."""

    status: int
    headers: HTTPMessage | dict[str, str]
    body: bytes


def send(port: int, request: Fuzzed) -> Answer:
    timeout = PATIENCE if request.whole else SILENCE
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        with suppress(OSError):  # refused before all was sent, as every client must expect
            connection.sendall(request.content)
        try:
            connection.settimeout(timeout)
            method = request.content.split()[0].decode()
            response = HTTPResponse(connection, method=method)
            response.begin()
            return Answer(response.status, response.headers, response.read())
        except (HTTPException, OSError, UnicodeDecodeError):
            return Answer(0, {}, b"")


def complaint(request: Fuzzed, answer: Answer) -> str | None:
    """What is wrong with an answer."""
    status, path = answer.status, request.content.split(b" ")[1]
    if status == 0:
        return "no answer" if request.whole else None
    if status == 503:
        return None if answer.headers.get("Retry-After") else "503 that does not say when"
    if status >= 500:
        return "5xx"
    if status >= 400 and path.startswith(API_PATHS) and not request.content.startswith(b"HEAD"):
        return not_an_envelope(answer.body)
    streamed = answer.headers.get("Content-Type", "").startswith("text/event-stream")
    if streamed and not request.content.startswith(b"HEAD"):
        return unsound_stream(answer.body)
    return None


def not_an_envelope(body: bytes) -> str | None:
    try:
        whole = json.loads(body)
        error = whole["error"]
        if whole.get("type") == "error":  # of Anthropic's API
            details = error.pop("details")
            error |= {"code": details["error_code"], "param": details["param"]}
        right = (
            set(error) == {"message", "type", "param", "code"} and error["code"] and error["type"]
        )
    except (ValueError, KeyError, TypeError):
        right = False
    return None if right else "not an envelope"


def unsound_stream(body: bytes) -> str | None:
    frames = [line for line in body.split(b"\n") if line.startswith(b"data: ")]
    if not frames or frames[-1] not in (b"data: [DONE]", b'data: {"type":"message_stop"}'):
        return "a stream without end"
    errors = [frame for frame in frames if frame.startswith(b'data: {"error":{')]
    return next((not_an_envelope(frame[6:]) for frame in errors), None)


@pytest.fixture
def target(service) -> Target:
    with service.http() as client:
        document = client.get("/v1/openapi.json").json()
        schemas = document["components"]["schemas"].values()
        requests = [s["properties"] for s in schemas if "model" in s.get("properties", {})]
        fields = sorted({name for properties in requests for name in properties} - {"model"})
        job = client.post("/v1/completions", json={**CALL, "background": True}).json()["id"]
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": CALL}
        upload = {"file": ("a.jsonl", json.dumps(line).encode()), "purpose": (None, "batch")}
        file = client.post("/v1/files", files=upload).json()["id"]
        batch = client.post("/v1/batches", json=batch_of(file)).json()["id"]
        session = client.post("/v1/sessions", json={"model": MODEL}).json()["id"]
        body = {"model": MODEL, "input": "hi", "max_output_tokens": 1}
        response = client.post("/v1/responses", json=body).json()["id"]
        body = {"items": [{"role": "user", "content": "a"}]}
        conversation = client.post("/v1/conversations", json=body).json()["id"]
        items = client.get(f"/v1/conversations/{conversation}/items").json()["data"]
    assert len(fields) > 60
    ids = {"id": job, "file": file, "batch": batch, "session": session, "response": response,
           "conversation": conversation, "item": items[0]["id"]}  # fmt: skip
    return Target(service.key, fields, ids)


def batch_of(file_id: str) -> dict[str, str]:
    return {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}


class Siege:
    """Sends, judges and counts."""

    def __init__(self, service, target: Target) -> None:
        self._service = service
        self._target = target
        self.complaints: list[tuple] = []
        self.answered: Counter[tuple[str, int]] = Counter()
        self.batches: list[str] = []

    def shoot(self, number: int) -> None:
        request = fuzzed(SEED, number, self._target)
        answer = self._judged(number, request)
        if request.kind == "file" and answer.status == 200:
            body = json.dumps(batch_of(json.loads(answer.body)["id"])).encode()
            made = Fuzzed("batch", raw_request(self._target, b"POST", b"/v1/batches", body))
            answer = self._judged(number, made)
            if answer.status == 200:
                self.batches.append(json.loads(answer.body)["id"])

    def _judged(self, number: int, request: Fuzzed) -> Answer:
        answer = send(self._service.port, request)
        self.answered[request.kind, answer.status] += 1
        if (wrong := complaint(request, answer)) is not None:
            seen = (wrong, SEED, number, answer.status, request.content[:3000], answer.body[:500])
            print(seen)
            self.complaints.append(seen)
        return answer


def test_broken_requests_break_nothing(service, http, target):
    print(f"seed {SEED}")
    processes = [service.pid(name) for name in PROCESSES]
    logs = {name: (service.home / "log" / f"{name}.log").stat().st_size for name in PROCESSES[:3]}
    siege = Siege(service, target)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for begin in range(FIRST, COUNT, 200):
            list(pool.map(siege.shoot, range(begin, min(begin + 200, COUNT))))
            assert http.post("/v1/completions", json=CALL).status_code == 200
            now = [service.pid(name) for name in PROCESSES]
            assert now == processes, f"after {begin}:\n{service.logs()}"
    require_ended(service, http, siege.batches)
    print(f"{siege.answered.total()} requests, {len(siege.batches)} batches")
    for kind in sorted({kind for kind, _ in siege.answered}):
        print(kind, {s: n for (k, s), n in sorted(siege.answered.items()) if k == kind})
    assert siege.complaints == []
    assert processes == [service.pid(name) for name in PROCESSES]
    for name, size in logs.items():
        with (service.home / "log" / f"{name}.log").open("rb") as log:
            log.seek(size)
            found = [line for line in log if any(word in line.decode() for word in UNFORESEEN)]
        assert found == [], name


def require_ended(service, http, batches: list[str]) -> None:
    """Check that every batch and every job ends, and that none fails by a fault of the service."""
    deadline = time.monotonic() + PATIENCE
    for batch in batches:
        while (seen := http.get(f"/v1/batches/{batch}").json())["status"] not in ENDED:
            assert time.monotonic() < deadline, seen
            time.sleep(0.2)
    client = connect(service.redis_url)
    while client.zcard("quire:open"):
        assert time.monotonic() < deadline, client.zrange("quire:open", 0, 5)
        time.sleep(0.2)
    for key in client.scan_iter("quire:job:*", count=1000):
        error = client.hget(key, "error") or b""
        assert b"worker_error" not in error, (key, error)
        assert b"engine_error" not in error, (key, error)
    client.close()
    assert http.get(f"/v1/models/{MODEL}").json()["status"] == "loaded"
