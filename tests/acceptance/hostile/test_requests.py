"""Hostile requests: each gets one clear 4xx, and the service stays up."""

import gzip
import socket

import pytest

from tests.acceptance.service import MODEL

pytestmark = pytest.mark.faults

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
    """No request reaches a server at the address that the client sends."""
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
