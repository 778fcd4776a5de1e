"""Redis goes while clients wait, and comes back."""

import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from completions.jobs.connection import connect
from tests.acceptance.service import MODEL, ScriptedInstallation, free_port
from tests.conftest import PrivateValkey
from tests.faults.invariants import until
from tests.faults.traffic import tokens

pytestmark = pytest.mark.faults

SOON = 100.0
"""Seconds that a client waits for an error. The service would wait 300 for the completion."""
LONG = {"model": MODEL, "prompt": [7], "max_tokens": 4000}
SHORT = {"model": MODEL, "prompt": [7], "max_tokens": 30, "seed": 5, "return_token_ids": True}


@pytest.fixture
def server() -> Iterator[PrivateValkey]:
    """A server that only the test restarts."""
    with tempfile.TemporaryDirectory(prefix="quire-") as folder:
        valkey = PrivateValkey(Path(folder))
        valkey.start()
        yield valkey
        valkey.stop()


def require_refusal(answer: httpx.Response) -> None:
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "queue_unavailable"
    assert answer.headers["Retry-After"]


def test_waiting_clients_get_an_error_when_redis_stops(tmp_path, server):
    """A stream, a waiting call, and all that come later; afterwards all is well by itself."""
    with (
        ScriptedInstallation(tmp_path, 0.05, REDIS_URL=server.url) as service,
        service.http() as http,
        ThreadPoolExecutor(1) as pool,
    ):
        client = connect(server.url)
        waiting = pool.submit(lambda: httpx.post(
            f"{service.url}/v1/completions", json=LONG, headers=http.headers, timeout=SOON
        ))  # fmt: skip
        body = {**LONG, "stream": True}
        with http.stream("POST", "/v1/completions", json=body, timeout=SOON) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data: "))
            next(lines)
            until(lambda: client.zcard("quire:open") == 2, "both run")
            client.close()
            server.stop()
            *_, last, done = lines
            answered = waiting.result()
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "queue_unavailable"
        assert done == "data: [DONE]"
        require_refusal(answered)
        for body in (SHORT, {**SHORT, "stream": True}, {**SHORT, "background": True}):
            require_refusal(http.post("/v1/completions", json=body))
        unready = http.get("/readyz")
        assert unready.status_code == 503
        assert "redis" in unready.json()["failures"]
        assert http.get("/healthz").status_code == 200

        server.start()
        answer = until(
            lambda: (a := http.post("/v1/completions", json=SHORT)).status_code == 200 and a,
            "all is well again",
        )
        assert answer.json()["choices"][0]["token_ids"] == tokens(5)
        assert service.worker_runs()
        assert http.get("/v1/completions").json()["data"] == []  # nothing refused was kept
        client = connect(server.url)
        until(lambda: client.zcard("quire:open") == 0, "nobody's jobs end")
        client.close()


def test_no_log_has_the_password_of_redis(tmp_path, server):
    """Neither when all is well nor when it goes."""
    password, port = "open-sesame-4711", free_port()
    client = connect(server.url)
    client.config_set("port", port)
    client.config_set("requirepass", password)
    client.close()
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    with ScriptedInstallation(tmp_path, 0.01, REDIS_URL=url) as service, service.http() as http:
        assert http.post("/v1/completions", json=SHORT).status_code == 200
        server.stop()
        require_refusal(http.post("/v1/completions", json=SHORT))
        logs = [*service.home.glob("*.out"), *(service.home / "log").glob("*.log")]
        until(lambda: "Redis does not answer" in (service.home / "worker.out").read_text(), "said")
        until(lambda: "rror" in (service.home / "log/cpu-worker.log").read_text(), "said, too")
    texts = {log.name: log.read_text() for log in logs}
    assert {"up.out", "worker.out", "web.log", "cpu-worker.log"} <= texts.keys()
    for name, text in texts.items():
        assert password not in text, name
        assert service.key not in text, name
