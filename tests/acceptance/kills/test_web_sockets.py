"""WebSocket connections whose responses take a while, and whose server is stopped."""

import json
import os
import signal
from collections.abc import Iterator

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.acceptance.service import MODEL, ScriptedInstallation, wait_until
from tests.acceptance.test_web_sockets import LAST, code, open_socket, read

pytestmark = [pytest.mark.acceptance, pytest.mark.wide]


@pytest.fixture
def slow(scripted: ScriptedInstallation) -> Iterator[httpx.Client]:
    with scripted.http() as client:
        yield client


def test_one_response_runs_at_a_time(slow: httpx.Client) -> None:
    with open_socket(slow) as socket:
        event = {"type": "response.create", "model": MODEL, "input": "Hi", "max_output_tokens": 30}
        socket.send(json.dumps(event))
        assert json.loads(socket.recv(timeout=60))["type"] == "response.created"
        socket.send(json.dumps(event))
        events = read(socket)
        assert code(events[-1]) == (409, "response_in_progress", None)
        assert json.loads(socket.recv(timeout=60))["sequence_number"] >= 1


def test_a_hang_up_cancels_the_response(slow: httpx.Client) -> None:
    with open_socket(slow) as socket:
        event = {"type": "response.create", "model": MODEL, "input": "Hi"}
        socket.send(json.dumps({**event, "max_output_tokens": 1000}))
        path = f"/v1/responses/{json.loads(socket.recv(timeout=60))['response']['id']}"
    wait_until(lambda: slow.get(path).json()["status"] == "cancelled", 30)


def test_a_stopping_server_closes_the_connection(
    scripted: ScriptedInstallation, slow: httpx.Client
) -> None:
    """After the response that runs; another web process takes its place."""
    with open_socket(slow) as idle, open_socket(slow) as socket:
        event = {"type": "response.create", "model": MODEL, "input": "Hi", "max_output_tokens": 5}
        socket.send(json.dumps(event))
        socket.recv(timeout=60)
        os.kill(scripted.pid("web"), signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            idle.recv(timeout=30)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        while json.loads(socket.recv(timeout=60))["type"] not in LAST[:2]:
            pass
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
    scripted.wait_ready()
