"""Background jobs, resumed streams, cancelling, hang-ups, strangers: the life of a completion."""

import json
import socket
import struct
import time

import openai
import pytest

from completions.jobs.connection import connect
from tests.acceptance.service import MODEL, Installation, ended_job

pytestmark = pytest.mark.acceptance

LONG = {"model": MODEL, "max_tokens": 4000, "ignore_eos": True, "temperature": 0.7, "seed": 2}
PATIENCE = 240.0


def frames(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


class Jobs:
    """The service's jobs, asked of its Redis."""

    def __init__(self, client) -> None:
        self._client = client
        self._old = self._known()

    def _known(self) -> set[bytes]:
        return set(self._client.scan_iter("quire:job:*", count=1000))

    def opened(self) -> int:
        """How many have not ended."""
        return self._client.zcard("quire:open")

    def states(self) -> list[bytes]:
        """Those of the jobs that came since."""
        return [self._client.hget(key, "state") for key in self._known() - self._old]


@pytest.fixture
def jobs(service: Installation):
    """Once those of other tests have ended."""
    with connect(service.redis_url) as client:
        until(lambda: client.zcard("quire:open") == 0)
        yield Jobs(client)


def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def send(connection: socket.socket, service: Installation, body: bytes) -> None:
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\n"
        b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
        % (service.key.encode(), len(body), body)
    )


def test_a_background_job_is_polled_to_its_end(http, tokenize):
    accepted = http.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": tokenize("Poll"), "max_tokens": 8, "ignore_eos": True},
        headers={"Prefer": "respond-async"},
    )
    assert accepted.status_code == 202
    assert accepted.headers["Preference-Applied"] == "respond-async"
    assert accepted.headers["Retry-After"] == "1"
    body = accepted.json()
    assert (body["status"], body["choices"], body["usage"]) == ("queued", [], None)
    assert accepted.headers["Location"] == f"/v1/completions/{body['id']}"

    polled = ended_job(http, accepted.headers["Location"])
    assert polled["status"] == "completed"
    assert polled["usage"]["completion_tokens"] == 8
    assert polled["choices"][0]["finish_reason"] == "length"
    assert polled["expires_at"] > time.time() + 3000
    assert http.get(accepted.headers["Location"]).json() == polled


def test_prefer_wait_answers_at_once_when_the_job_is_quick(http, tokenize):
    answer = http.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": tokenize("Wait"), "max_tokens": 2, "ignore_eos": True},
        headers={"Prefer": "respond-async, wait=20"},
    )
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["finish_reason"] == "length"


def test_a_stream_is_resumed_from_a_sequence_number(http, tokenize):
    call = {**LONG, "prompt": tokenize("Resume"), "max_tokens": 20, "background": True}
    location = http.post("/v1/completions", json=call).headers["Location"]
    everything = frames(http.get(location, params={"stream": "true"}).text)
    numbers = [frame["sequence_number"] for frame in everything]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 1  # an event has several tokens where a draft was accepted
    seen = len(numbers) // 2
    rest = frames(http.get(location, params={"stream": "true", "starting_after": seen}).text)
    assert rest == everything[seen:]
    known = {"Last-Event-ID": str(seen)}
    with_ids = http.get(location, params={"stream": "true"}, headers=known).text
    assert frames(with_ids) == rest
    assert f"id: {seen + 1}\n" in with_ids


def test_a_background_stream_survives_its_connection(http, tokenize):
    call = {**LONG, "prompt": tokenize("Go on"), "max_tokens": 60, "background": True}
    with http.stream("POST", "/v1/completions", json={**call, "stream": True}) as response:
        first = next(line for line in response.iter_lines() if line.startswith("data: "))
        completion_id = json.loads(first.removeprefix("data: "))["id"]
    polled = ended_job(http, f"/v1/completions/{completion_id}")
    assert polled["status"] == "completed"
    assert polled["usage"]["completion_tokens"] == 60


def test_cancelling_is_idempotent_and_keeps_what_there_is(http, tokenize):
    call = {**LONG, "prompt": tokenize("Cancel"), "background": True}
    location = http.post("/v1/completions", json=call).headers["Location"]
    with http.stream("GET", location, params={"stream": "true"}) as response:
        assert next(line for line in response.iter_lines() if line.startswith("data: {"))
    cancelled = http.post(f"{location}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert cancelled["choices"][0]["finish_reason"] == "abort"
    assert cancelled["usage"]["completion_tokens"] < 4000
    assert http.post(f"{location}/cancel").json() == cancelled


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_cancels_the_job(service, tokenize, jobs, stream):
    body = json.dumps({**LONG, "prompt": tokenize("Hang up"), "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        send(connection, service, body)
        until(lambda: jobs.opened() == 1)
    until(lambda: jobs.opened() == 0)
    assert jobs.states() == [b"cancelled"]


@pytest.mark.wide
def test_no_early_hang_up_is_missed(service, tokenize, jobs):
    """Clients that vanish while the request is being read, stored, queued or answered."""
    for number in range(40):
        body = json.dumps({**LONG, "prompt": tokenize("Early"), "stream": number % 2 == 0}).encode()
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            send(connection, service, body)
            time.sleep(number / 4 / 1000)  # 0 to 10 ms, then a reset
    until(lambda: jobs.opened() == 0)
    assert set(jobs.states()) <= {b"cancelled"}


def test_another_organization_sees_nothing(service, http, tokenize):
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


def test_a_revoked_key_is_soon_refused(service):
    key = service.manage("create_api_key", "short-lived").strip()
    with service.http(key) as client:
        assert client.get("/v1/models").status_code == 200
        service.manage("revoke_api_key", "short-lived")
        until(lambda: client.get("/v1/models").status_code == 401)
        refused = client.get("/v1/models")
    assert refused.json()["error"]["code"] == "api_key_revoked"


def test_the_limits_of_a_key_hold_and_are_reported(service):
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
    call = {"model": MODEL, "prompt": [1], "max_tokens": 1}
    long = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    with service.client(key) as client:
        with client.completions.create(stream=True, **{**call, **long}) as stream:
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(**call)
            assert caught.value.code == "concurrency_limit_exceeded"
            assert caught.value.response.headers["retry-after"] == "1"

        def admitted() -> bool:
            """The worker has noticed that the stream's client has gone."""
            try:
                client.completions.create(**call)
            except openai.RateLimitError:
                return False
            return True

        until(admitted)


def test_every_refusal_has_the_error_envelope(http):
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
