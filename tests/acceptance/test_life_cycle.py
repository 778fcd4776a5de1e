"""Background jobs, resumed streams, cancelling, hang-ups, strangers: the life of a completion."""

import json
import socket
import struct
import time

import openai
import pytest

from completions.jobs.connection import connect
from tests.acceptance.service import MODEL

pytestmark = pytest.mark.acceptance

LONG = {"model": MODEL, "max_tokens": 2000, "ignore_eos": True, "temperature": 0.7, "seed": 2}


def frames(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.fixture
def open_jobs(service):
    """How many jobs have not ended, asked of the service's Redis."""
    client = connect(service.redis_url)
    yield lambda: client.zcard("quire:open")
    client.close()


def test_a_background_job_is_polled_to_its_end(http, tokenize):
    accepted = http.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": tokenize("Poll"), "max_tokens": 8},
        headers={"Prefer": "respond-async"},
    )
    assert accepted.status_code == 202
    assert accepted.headers["Preference-Applied"] == "respond-async"
    assert accepted.headers["Retry-After"] == "1"
    body = accepted.json()
    assert (body["status"], body["choices"], body["usage"]) == ("queued", [], None)
    assert accepted.headers["Location"] == f"/v1/completions/{body['id']}"

    polled = http.get(accepted.headers["Location"], params={"wait": 30}).json()
    assert polled["status"] == "completed"
    assert polled["usage"]["completion_tokens"] == 8
    assert polled["choices"][0]["finish_reason"] == "length"
    assert polled["expires_at"] > time.time() + 3000
    assert http.get(accepted.headers["Location"]).json() == polled


def test_prefer_wait_answers_at_once_when_the_job_is_quick(http, tokenize):
    answer = http.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": tokenize("Wait"), "max_tokens": 2},
        headers={"Prefer": "respond-async, wait=20"},
    )
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["finish_reason"] == "length"


def test_a_stream_is_resumed_from_a_sequence_number(http, tokenize):
    call = {"model": MODEL, "prompt": tokenize("Resume"), "max_tokens": 20, "background": True}
    location = http.post("/v1/completions", json=call).headers["Location"]
    everything = frames(http.get(location, params={"stream": "true"}).text)
    numbers = [frame["sequence_number"] for frame in everything]
    assert numbers == list(range(1, 21))
    rest = frames(http.get(location, params={"stream": "true", "starting_after": 12}).text)
    assert rest == everything[12:]
    with_ids = http.get(location, params={"stream": "true"}, headers={"Last-Event-ID": "12"}).text
    assert frames(with_ids) == rest
    assert "id: 13\n" in with_ids


def test_a_background_stream_survives_its_connection(http, tokenize):
    call = {**LONG, "prompt": tokenize("Go on"), "max_tokens": 60, "background": True}
    with http.stream("POST", "/v1/completions", json={**call, "stream": True}) as response:
        first = next(line for line in response.iter_lines() if line.startswith("data: "))
        completion_id = json.loads(first.removeprefix("data: "))["id"]
    polled = http.get(f"/v1/completions/{completion_id}", params={"wait": 30}).json()
    assert polled["status"] == "completed"
    assert polled["usage"]["completion_tokens"] == 60


def test_cancelling_is_idempotent_and_keeps_what_there_is(http, tokenize):
    call = {**LONG, "prompt": tokenize("Cancel"), "background": True}
    location = http.post("/v1/completions", json=call).headers["Location"]
    time.sleep(0.5)
    cancelled = http.post(f"{location}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert cancelled["choices"][0]["finish_reason"] == "abort"
    assert cancelled["usage"]["completion_tokens"] < 2000
    assert http.post(f"{location}/cancel").json() == cancelled


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_frees_the_slot_within_a_second(service, tokenize, open_jobs, stream):
    assert open_jobs() == 0
    body = json.dumps({**LONG, "prompt": tokenize("Hang up"), "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n"
            b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
            % (service.key.encode(), len(body), body)
        )
        deadline = time.monotonic() + 30
        while open_jobs() != 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    hung_up = time.monotonic()
    while open_jobs():
        assert time.monotonic() < hung_up + 5  # a second, on a machine that is not busy
        time.sleep(0.01)


def test_no_early_hang_up_is_missed(service, tokenize, open_jobs):
    """Clients that vanish while the request is being read, stored, queued or answered."""
    for number in range(40):
        body = json.dumps({**LONG, "prompt": tokenize("Early"), "stream": number % 2 == 0}).encode()
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\n"
                b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
                % (service.key.encode(), len(body), body)
            )
            time.sleep(number / 4 / 1000)  # 0 to 10 ms, then a reset
    hung_up = time.monotonic()
    while open_jobs():
        assert time.monotonic() < hung_up + 10
        time.sleep(0.05)


def test_strangers_see_nothing(service, http, tokenize):
    stranger = service.manage("create_api_key", "other", "--organization", "stranger").strip()
    call = {"model": MODEL, "prompt": tokenize("Mine"), "max_tokens": 2, "background": True}
    location = http.post("/v1/completions", json=call).headers["Location"]
    with service.http(stranger) as other:
        for answer in (
            other.get(location),
            other.get(location, params={"stream": "true"}),
            other.post(f"{location}/cancel"),
            other.get("/v1/completions/cmpl-nobody"),
        ):
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "completion_not_found"


def test_a_revoked_key_is_refused_within_a_second(service):
    key = service.manage("create_api_key", "short-lived").strip()
    with service.http(key) as client:
        assert client.get("/v1/models").status_code == 200
        service.manage("revoke_api_key", "short-lived")
        deadline = time.monotonic() + 5  # a second, on a machine that is not busy
        while (refused := client.get("/v1/models")).status_code != 401:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert refused.json()["error"]["code"] == "api_key_revoked"


def test_the_limits_of_a_key_hold_and_are_told(service):
    key = service.manage("create_api_key", "limited", "--rpm", "1", "--tpm", "100").strip()
    call = {"model": MODEL, "prompt": [1, 2], "max_tokens": 8}
    with service.client(key) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**{**call, "max_tokens": 99})
        assert caught.value.response.headers["x-should-retry"] == "false"
        first = client.completions.with_raw_response.create(**call)
        assert first.headers["x-ratelimit-limit-requests"] == "1"
        assert first.headers["x-ratelimit-remaining-requests"] == "0"
        assert first.headers["x-ratelimit-remaining-tokens"] == "90"
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**call)
    assert caught.value.code == "rate_limit_exceeded"
    assert 0 < int(caught.value.response.headers["retry-after"]) <= 60


def test_a_stream_takes_the_place_that_a_key_has(service):
    key = service.manage("create_api_key", "narrow", "--max-concurrency", "1").strip()
    call = {"model": MODEL, "prompt": [1], "max_tokens": 60, "extra_body": {"ignore_eos": True}}
    with service.client(key) as client:
        with client.completions.create(stream=True, **call) as stream:
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(**call)
            assert caught.value.code == "concurrency_limit_exceeded"
            assert caught.value.response.headers["retry-after"] == "1"
            list(stream)
        client.completions.create(**call)


def test_every_refusal_is_an_envelope(http):
    for answer, status, code in (
        (http.get("/v1/nothing"), 404, "not_found"),
        (http.put("/v1/completions"), 405, "method_not_allowed"),
        (http.post("/v1/completions", content=b"{"), 415, "unsupported_media_type"),
        (
            http.post(
                "/v1/completions", content=b"{", headers={"Content-Type": "application/json"}
            ),
            400,
            "invalid_json",
        ),
        (
            http.post(
                "/v1/completions",
                content=b" " * (9 << 20),
                headers={"Content-Type": "application/json"},
            ),
            413,
            "payload_too_large",
        ),
    ):
        assert answer.status_code == status
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == code
        assert answer.headers["x-request-id"]
