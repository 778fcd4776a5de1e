"""A session whose processes are killed has the same token ids as one whose processes are not."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.acceptance.service import MODEL, START_TIMEOUT, Installation

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with Installation(tmp_path_factory.mktemp("sessions")) as service:
        yield service


PROCESSES = ("worker", "web", "cpu-worker", "valkey")
"""Killed in turns, each while a turn of the session waits or runs."""
RETRIED = (409, 500, 503)


def take_turn(http: httpx.Client, name: str, number: int, session: str) -> dict[str, Any]:
    """Send a turn until its answer comes. Sent again, it is the same turn."""
    body = {
        "model": MODEL, "session": session, "seed": number, "temperature": 0.9, "max_tokens": 12,
        "messages": [{"role": "user", "content": f"Number {number}, please."}],
        "regex": "[a-z]{3,8} [0-9]{1,3}", "return_token_ids": True,
    }  # fmt: skip
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        try:
            headers = {"Idempotency-Key": f"{name}-{number}"}
            response = http.post("/v1/chat/completions", json=body, headers=headers)
        except httpx.TransportError:
            continue
        if response.status_code == 200:
            made: dict[str, Any] = response.json()
            return made
        assert response.status_code in RETRIED, response.text
        time.sleep(0.2)
    raise AssertionError("the turn did not end in time")


def converse(service: Installation, name: str, turns: int, *, kills: bool) -> list[dict[str, Any]]:
    """Return the trajectory of a session of so many turns."""
    session = "new"
    with service.http() as http, ThreadPoolExecutor(1) as pool:
        for number in range(turns):
            turn = pool.submit(take_turn, http, name, number, session)
            if kills:
                service.kill(PROCESSES[number % len(PROCESSES)])
            session = turn.result()["session"]["id"]
        service.wait_ready()
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            export = http.get(f"/v1/sessions/{session}/trajectory")
            if export.status_code == 200 and len(lines := export.text.splitlines()) == turns:
                break
            assert time.monotonic() < deadline, export.text
            time.sleep(0.2)
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("turns", [4, pytest.param(50, marks=pytest.mark.long)])
def test_a_session_survives_kills_of_each_process(service: Installation, turns: int) -> None:
    calm = converse(service, f"calm-{turns}", turns, kills=False)
    killed = converse(service, f"killed-{turns}", turns, kills=True)
    for one, other in zip(calm, killed, strict=True):
        assert one["given"] == other["given"]
        assert [each["token_ids"] for each in one["choices"]] == [
            each["token_ids"] for each in other["choices"]
        ]
    afters = [line["after"] for line in killed]
    assert afters == [None, *(f"{line['turn']}:0" for line in killed[:-1])]
