"""Requests made to hurt: whatever comes, the answer is one clear 4xx, and the service stays up."""

import gzip
import json
import os
import random
import socket

import pytest

from tests.acceptance.service import MODEL

pytestmark = pytest.mark.faults

FUZZED = int(os.environ.get("QUIRE_FUZZED_REQUESTS", "400"))
CALL = {"model": MODEL, "prompt": [1, 2], "max_tokens": 1}


def refused(answer) -> str:
    """The code of a 4xx in OpenAI's envelope."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    code: str = error["code"]
    return code


def test_a_compressed_body_is_not_unpacked(http):
    """64 MiB in 64 KiB."""
    bomb = gzip.compress(b"0" * (64 << 20))
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert refused(http.post("/v1/completions", content=bomb, headers=headers)) == "invalid_json"


@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_depth_is_bounded(http, opening):
    body = '{"model": "m", "prompt": ' + opening * 200_000
    headers = {"Content-Type": "application/json"}
    answer = http.post("/v1/completions", content=body.encode(), headers=headers)
    assert refused(answer) == "invalid_json"


@pytest.mark.parametrize(
    "model", ["../../../etc/passwd", "/etc/passwd", "http://127.0.0.1:6379/", "%2e%2e%2f", "\0"]
)
def test_a_model_is_a_name_in_a_table(http, model):
    assert refused(http.post("/v1/completions", json={**CALL, "model": model})) == "model_not_found"
    answer = http.get(f"/v1/models/{model.replace(chr(0), '%00')}")
    assert refused(answer) in ("model_not_found", "not_found")


def test_nothing_is_fetched_for_a_client(http):
    """A server of ours listens; nobody may call it."""
    with socket.create_server(("127.0.0.1", 0)) as trap:
        url = f"http://127.0.0.1:{trap.getsockname()[1]}/"
        part = {"type": "image_url", "image_url": {"url": url}}
        bodies = [
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]}),
            ("/v1/completions", {"prompt": [1], "json_schema": {"$ref": url}}),
            ("/v1/completions", {"prompt": [1], "lora_path": url}),
            ("/v1/completions", {"prompt": [1], "custom_logit_processor": url}),
            ("/v1/batches", {"input_file_id": url, "endpoint": "/v1/completions",
                             "completion_window": "24h"}),
        ]  # fmt: skip
        for path, body in bodies:
            if path != "/v1/batches":
                body = {"model": MODEL, "max_tokens": 1, **body}
            refused(http.post(path, json=body))
        trap.settimeout(0.2)
        with pytest.raises(TimeoutError):
            trap.accept()


def test_a_files_name_goes_nowhere_but_back(service, http):
    name = '../../../tmp/evil"\r\nSet-Cookie: a=b;\u2028.jsonl'
    before = set(service.home.parent.rglob("*evil*"))
    answer = http.post("/v1/files", files={"file": (name, b"{}"), "purpose": (None, "batch")})
    if answer.status_code == 200:
        content = http.get(f"/v1/files/{answer.json()['id']}/content")
        assert content.content == b"{}"
        assert "set-cookie" not in content.headers
        assert "/" not in answer.json()["filename"]
    else:
        refused(answer)
    assert set(service.home.parent.rglob("*evil*")) == before
    for path in ("..%2f..%2fsecrets.json", "file-%00", "file-../../secrets.json"):
        refused(http.get(f"/v1/files/{path}/content"))


@pytest.mark.parametrize("value", [b"a\tb", b"a b", b"x" * 200, b"\xff\xfe", b"a%0d%0aX: y"])
def test_a_request_id_that_could_do_harm_is_replaced(http, value):
    answer = http.get("/v1/models", headers=[(b"X-Request-Id", value)])
    assert answer.headers["x-request-id"].startswith("req_")


def test_pages_of_the_admin_are_protected(http):
    page = http.get("/admin/login/")
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    forged = http.post("/admin/login/", data={"username": "a", "password": "b"})
    assert forged.status_code == 403  # no CSRF token
    elsewhere = http.get("/admin/login/", headers={"Host": "evil.example"})
    assert elsewhere.status_code == 400


def mutate(dice: random.Random, data: bytes) -> bytes:
    """A few bytes changed, taken out, put in or doubled."""
    broken = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 5, 30])):
        at = dice.randrange(len(broken) + 1)
        what = dice.randrange(4)
        if what == 0 and at < len(broken):
            broken[at] = dice.randrange(256)
        elif what == 1:
            del broken[at : at + dice.randrange(1, 9)]
        elif what == 2:
            broken[at:at] = dice.choice(WEIRD)
        else:
            broken[at:at] = broken[at : at + dice.randrange(1, 40)]
    return bytes(broken)


WEIRD = [
    b"null", b"-1", b"1e999", b"[]", b"{}", b'"', b"\\u0000", b"\\ud800", b"true", b"9" * 400,
    b"\x00", b"\xff", b"\\", b"[[[[", b'{"a":{"a":', b"NaN", b"\r\n", b"\xe2\x80\xa8",
]  # fmt: skip
SEEDS = [
    ("POST", "/v1/completions", {**CALL, "logit_bias": {"5": 1}, "stop": ["a"], "n": 2}),
    ("POST", "/v1/completions", {**CALL, "ebnf": 'root ::= "a" [b-d]* ("x" | root)'}),
    ("POST", "/v1/completions", {**CALL, "regex": "(a|b)*c{2,5}[^x]"}),
    ("POST", "/v1/completions",
     {**CALL, "json_schema": {"type": "object", "properties": {"a": {"enum": [1, "x"]}}}}),
    ("POST", "/v1/completions",
     {**CALL, "structural_tag": {"format": {"type": "const_string", "value": "x"}}}),
    ("POST", "/v1/completions", {**CALL, "background": True, "metadata": {"a": "b"}}),
    ("POST", "/v1/chat/completions",
     {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}),
    ("POST", "/v1/tokenize", {"model": MODEL, "prompt": "hello"}),
    ("POST", "/v1/detokenize", {"model": MODEL, "tokens": [1, 2, 3]}),
    ("POST", "/v1/grammars/validate", {"model": MODEL, "regex": "a+", "text": "aa"}),
    ("POST", "/v1/batches",
     {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"}),
    ("GET", "/v1/completions?limit=3&after=x", None),
    ("GET", "/v1/files?purpose=batch&limit=2", None),
    ("GET", "/v1/batches?limit=2", None),
    ("GET", "/v1/models/x", None),
    ("DELETE", "/v1/files/file-x", None),
]  # fmt: skip


def send(service, method: str, path: bytes, body: bytes, headers: bytes) -> int:
    """The status of a raw request; 0 where the server hung up without one."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=120) as connection:
        connection.sendall(
            b"%b %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Authorization: Bearer %b\r\nContent-Type: application/json\r\n%b"
            b"Content-Length: %d\r\n\r\n%b"
            % (method.encode(), path, service.key.encode(), headers, len(body), body)
        )
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def test_broken_requests_break_nothing(service, http):
    """QUIRE_FUZZED_REQUESTS of them; none is a 5xx, and the processes are the same afterwards."""
    seed = int(os.environ.get("QUIRE_FAULT_SEED", "0")) or random.randrange(1 << 30)  # noqa: S311
    print(f"seed {seed}")
    dice = random.Random(seed)  # noqa: S311
    processes = [service.pid(name) for name in ("web", "worker", "cpu-worker")]
    for number in range(FUZZED):
        method, path, body = dice.choice(SEEDS)
        content = json.dumps(body).encode() if body is not None else b""
        address, headers = path.encode(), b""
        what = dice.randrange(10)
        if what == 0:
            address = mutate(dice, address).translate(None, b"\r\n \x00") or b"/"
        elif what == 1:
            value = mutate(dice, b"abc").translate(None, b"\r\n\x00")
            name = dice.choice([b"X-Request-Id", b"Prefer", b"Idempotency-Key", b"If-None-Match"])
            headers = name + b": " + value + b"\r\n"
        if content:
            content = mutate(dice, content)
        status = send(service, method, address, content, headers)
        context = (seed, number, status, method, address, headers, content)
        assert status < 500, context
        if number % 100 == 99:
            assert http.post("/v1/completions", json=CALL).status_code == 200
    assert processes == [service.pid(name) for name in ("web", "worker", "cpu-worker")]
    assert http.post("/v1/completions", json=CALL).status_code == 200
