"""What must hold once the storm is over, whatever was killed."""

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from completions.jobs import events
from completions.jobs.connection import connect
from completions.jobs.events import EndEvent
from tests.acceptance.service import Installation
from tests.faults.traffic import Ledger, tokens

PATIENCE = 300.0


def until(condition: Callable[[], Any], what: str, timeout: float = PATIENCE) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.2)
    return found


def require_sound(service: Installation, ledger: Ledger) -> None:
    """Nothing wrong was answered; what was accepted is done, done once, counted once."""
    assert not ledger.violations, ledger.violations[:5]
    require_background_done(service, ledger.accepted)
    require_nothing_open(service)
    require_one_end_each(service)


def require_background_done(
    service: Installation, accepted: dict[str, int], key: str | None = None
) -> None:
    with service.http(key) as http:
        for location, seed in accepted.items():
            body = until(lambda at=location: _completed(http, at), location)  # type: ignore[misc]
            assert body["choices"][0]["token_ids"] == tokens(seed), location


def _completed(http: httpx.Client, location: str) -> Any:
    try:
        answer = http.get(location, params={"wait": 5})
    except httpx.TransportError:  # its web process starts again
        return None
    if answer.status_code == 503:
        return None
    assert answer.status_code == 200, (location, answer.text)
    body = answer.json()
    assert body["status"] in ("queued", "in_progress", "completed"), body
    return body if body["status"] == "completed" else None


def require_nothing_open(service: Installation) -> None:
    """No job waits for ever, and nothing that ended waits for SQL."""
    client = connect(service.redis_url)
    until(lambda: client.zcard("quire:open") == 0, "every job ends")
    until(lambda: client.xlen("quire:usage") == 0, "every job is settled")
    client.close()


def require_one_end_each(service: Installation) -> None:
    """Each job that Redis remembers: gapless events, exactly one end, exactly one usage record."""
    client = connect(service.redis_url)
    ended = []
    for key in client.scan_iter("quire:job:*", count=1000):
        job_id = key.decode().removeprefix("quire:job:")
        state, entries = client.hget(key, "state"), client.xrange(f"quire:ev:{job_id}")
        if not client.exists(key):  # SQL has it, and Redis has forgotten it meanwhile
            continue
        assert state in (b"completed", b"failed", b"cancelled"), (job_id, state)
        expected = 1
        decoded = [events.decode(fields[b"d"]) for _, fields in entries]
        for event in decoded[:-1]:
            assert isinstance(event, list), f"{job_id} has an end before its end"
            for choice in event:
                assert choice.sequence_number == expected, f"{job_id} has a gap at {expected}"
                expected += 1
        end = decoded[-1]
        assert isinstance(end, EndEvent), f"{job_id} has no end"
        assert (end.state, end.sequence_number) == (state.decode(), expected), job_id
        ended.append(job_id)
    client.close()
    assert ended
    recorded = records_of(service, ended)
    assert recorded == dict.fromkeys(ended, 1)


def records_of(service: Installation, job_ids: list[str]) -> dict[str, int]:
    """How many usage records each job has."""
    asked = service.home / "asked.json"
    asked.write_text(json.dumps(job_ids))
    script = (
        "import json, collections; from completions.models import UsageRecord as U;"
        f"asked = set(json.load(open({str(asked)!r})));"
        "found = [i for i in U.objects.values_list('job_id', flat=True) if i in asked];"
        "print(json.dumps(collections.Counter(found)))"
    )
    counted: dict[str, int] = json.loads(service.manage("shell", "-v0", "-c", script))
    return counted
