"""Engine workers of one version beside the web tier of another, as in the middle of an upgrade."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from completions.jobs.connection import connect
from tests.acceptance.service import MODEL, ROOT, ScriptedInstallation, ended_job
from tests.upgrades import workload
from tests.upgrades.earlier import COMMITS, SCRIPTED_WORKERS, check_out_or_skip

STEP = 0.05
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
_CHAT = [{"role": "user", "content": "Add."}]
BODIES: dict[str, dict[str, Any]] = {
    "prompts": {"prompt": [[1, 2], [3]], "n": 2, "best_of": 3},
    "sampling": {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 0.1,
        "frequency_penalty": 0.1, "repetition_penalty": 1.1, "logit_bias": {"5": 1.5},
        "dry_multiplier": 0.5, "min_tokens": 1, "custom_logit_processor": "disallowed_tokens",
        "custom_params": {"token_ids": [1]},
    },
    "ends": {
        "stop": ["~~~"], "stop_regex": ["~{3}"], "stop_token_ids": [7], "ignore_eos": True,
        "no_stop_trim": True, "skip_special_tokens": False,
    },
    "grammar": {"regex": "[a-z]*"},
    "schema": {"json_schema": {"type": "object"}},
    "routing": {"rid": "mine", "cache_salt": "salt", "priority": 0},
    "details": {"return_meta_info": True, "return_token_ids": True, "echo": True},
    "chat": {"messages": _CHAT},
    "tools": {"messages": _CHAT, "tools": [TOOL]},
    "format": {"messages": _CHAT, "response_format": {"type": "json_object"}},
}  # fmt: skip
"""What workers of both versions take, so that most fields of a request are written."""
REFINED: dict[str, dict[str, Any]] = {
    "stops beside calls": {"messages": _CHAT, "tools": [TOOL], "stop": ["~~~"]},
    "effect of a grammar": {"regex": "[a-z]*", "return_meta_info": True},
}
"""Requests that 0.1.0 takes too, whose jobs have fields that its workers do not know."""

pytestmark = [pytest.mark.integration, pytest.mark.wide]


class Mixed(ScriptedInstallation):
    """The web tier and the background worker of one version; workers of either."""

    def run_worker_of(self, version: str | None, root: Path) -> None:
        """Choose the version of the workers that start from now on."""
        module = SCRIPTED_WORKERS.get(version) if version else None
        self.worker_root = root
        self.worker_module = module or ScriptedInstallation.worker_module


@pytest.fixture(scope="module", params=sorted(COMMITS))
def version(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def source(version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return check_out_or_skip(version, tmp_path_factory.mktemp("source"))


@pytest.fixture(
    scope="module", params=["their workers, our web tier", "our workers, their web tier"]
)
def mixed(
    request: pytest.FixtureRequest,
    version: str,
    source: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mixed]:
    """Workers of the one version and the web tier of the other."""
    mixed = Mixed(tmp_path_factory.mktemp("mixed"), STEP, QUIRE_SHUTDOWN_GRACE="1")
    if request.param.startswith("their"):
        mixed.run_worker_of(version, source)
    else:
        mixed.root = source
    with mixed:
        yield mixed


@pytest.fixture(scope="module")
def http(mixed: Mixed) -> Iterator[httpx.Client]:
    with mixed.http() as client:
        yield client


def post(http: httpx.Client, fields: dict[str, Any]) -> httpx.Response:
    """Send a request, again where the answer is that the service is overloaded, as clients do."""
    body = {"model": MODEL, "max_tokens": 4, "seed": 1, **fields}
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    given = {} if "messages" in body else {"prompt": [1, 2]}
    for _ in range(100):
        reply = http.post(path, json={**given, **body})
        if "server_overloaded" not in reply.text:
            break
        time.sleep(0.1)
    return reply


@pytest.mark.parametrize("name", BODIES)
def test_every_kind_of_request_is_served(http: httpx.Client, name: str) -> None:
    reply = post(http, BODIES[name])
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] >= 4


@pytest.mark.parametrize("name", REFINED)
def test_a_worker_refuses_only_the_jobs_that_it_does_not_understand(
    mixed: Mixed, http: httpx.Client, version: str, name: str
) -> None:
    """As docs/upgrade.md says."""
    if version != "0.1.0":
        pytest.skip("workers since 0.1.0 know these fields")
    reply = post(http, REFINED[name])
    if mixed.worker_root == ROOT:
        assert reply.status_code == 200, reply.text
    else:
        assert reply.status_code == 500
        assert reply.json()["error"]["code"] == "worker_error"
    assert post(http, BODIES["prompts"]).status_code == 200


def test_streams_and_background_jobs(http: httpx.Client) -> None:
    body = workload.line_body(7)
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
        events = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    assert text == workload.expected_text(body)
    job_id = http.post("/v1/completions", json=workload.short_body(1)).json()["id"]
    job = ended_job(http, f"/v1/completions/{job_id}")
    assert job["choices"][0]["text"] == workload.expected_text(workload.short_body(1))


def test_a_worker_continues_what_one_of_the_other_version_began(
    mixed: Mixed, http: httpx.Client, version: str, source: Path
) -> None:
    """In both directions: claims, published tokens and returned jobs."""
    first = mixed.worker_root
    second = ROOT if first == source else source
    for root in (second, first):
        body = {**workload.job_body(5), "max_tokens": 60}
        job_id = http.post("/v1/completions", json=body).raise_for_status().json()["id"]
        with http.stream(
            "GET", f"/v1/completions/{job_id}", params={"stream": True, "starting_after": 0}
        ) as stream:
            assert next(line for line in stream.iter_lines() if line.startswith("data:"))
        mixed.run_worker_of(version if root == source else None, root)
        mixed.restart_worker(signal.SIGTERM)
        job = ended_job(http, f"/v1/completions/{job_id}")
        assert job["status"] == "completed", job
        assert job["choices"][0]["text"] == workload.expected_text(body)
        assert job["usage"]["completion_tokens"] == body["max_tokens"]
        with connect(mixed.redis_url) as redis:
            assert redis.hget(f"quire:job:{job_id}", "attempt") == b"2"
