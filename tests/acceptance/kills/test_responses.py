"""kill -9 of each process during a background response: its stream goes on elsewhere, and its
conversation gets it once."""

import json
import os
import shutil
import signal
from typing import Any

import pytest

from benchmarks.service.scripted_worker import token
from tests.acceptance.kills.test_kills import until
from tests.acceptance.service import MODEL, ScriptedInstallation

pytestmark = [pytest.mark.acceptance, pytest.mark.wide]

TOKENS = 100
TEXT = "".join(chr(token(3, 0, k)) for k in range(TOKENS))
BODY: dict[str, Any] = {
    "model": MODEL, "input": "Go on.", "max_output_tokens": TOKENS, "seed": 3, "background": True,
}  # fmt: skip


def read_events(lines: Any, most: int = 10**6) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    for line in lines:
        if line.startswith("data: {"):
            seen.append(json.loads(line.removeprefix("data: ")))
        if len(seen) == most:
            break
    return seen


@pytest.mark.long
def test_a_response_survives_its_web_process_and_its_worker(
    scripted: ScriptedInstallation,
) -> None:
    with scripted.http() as http:
        conversation = http.post("/v1/conversations", json={}).json()["id"]
        body = {**BODY, "stream": True, "conversation": conversation}
        with http.stream("POST", "/v1/responses", json=body) as response:
            seen = read_events(response.iter_lines(), 12)
            victim = scripted.pid("web")
            os.kill(victim, signal.SIGKILL)
        scripted.kill_worker()
        scripted.pid("web", besides=victim)
        scripted.wait_ready()
        path = f"/v1/responses/{seen[0]['response']['id']}"
        last = seen[-1]["sequence_number"]
        rest = http.get(path, params={"stream": "true", "starting_after": last}, timeout=300)
        seen += read_events(rest.text.splitlines())
        assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
        deltas = [event["delta"] for event in seen if event["type"].endswith("text.delta")]
        assert "".join(deltas) == TEXT
        assert seen[-1]["response"]["output"][0]["content"][0]["text"] == TEXT
        items = http.get(f"/v1/conversations/{conversation}/items", params={"order": "asc"}).json()
        assert [item["content"][0]["text"] for item in items["data"]] == ["Go on.", TEXT]
        again = http.post("/v1/responses", json={**BODY, "conversation": conversation})
        assert again.status_code == 200, again.text


@pytest.mark.faults
def test_a_response_survives_an_emptied_redis(scripted: ScriptedInstallation) -> None:
    scripted.stop_worker()
    with scripted.http() as http:
        path = f"/v1/responses/{http.post('/v1/responses', json=BODY).json()['id']}"
        scripted.kill("valkey")
        for entry in (scripted.home / "valkey").iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
        scripted.start_worker()
        scripted.wait_ready()

        def look() -> dict[str, Any] | None:
            answer = http.get(path, params={"wait": 5})
            ended = answer.status_code == 200 and answer.json()["completed_at"] is not None
            return answer.json() if ended else None

        (item,) = until(look)["output"]
        assert item["content"][0]["text"] == TEXT
