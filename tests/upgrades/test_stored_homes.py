"""This version continues the work that an earlier one left when all its processes were killed."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.service import MODEL, START_TIMEOUT, ScriptedInstallation, ended_job
from tests.postgresql import new_database
from tests.upgrades import workload
from tests.upgrades.earlier import HOMES, StoredHome, unpack
from tests.upgrades.restore import load_postgresql, move_redis, move_sqlite, whole_hours_since

VERSIONS = sorted(path.name.removesuffix(".tar.xz") for path in HOMES.glob("*.tar.xz"))
STEP = 0.005

pytestmark = [pytest.mark.integration, pytest.mark.wide]


class Upgraded(ScriptedInstallation):
    stored: StoredHome

    def more_models(self) -> str:
        return workload.PRICES.replace("PRICED", MODEL)


@pytest.fixture(
    scope="module",
    params=[(version, vendor) for version in VERSIONS for vendor in ("sqlite", "postgresql")],
    ids="-".join,
)
def upgraded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Upgraded]:
    version, vendor = request.param
    stored = unpack(version, tmp_path_factory.mktemp("stored"))
    home = tmp_path_factory.mktemp("upgraded")
    shutil.copytree(stored.folder, home, dirs_exist_ok=True)
    by = whole_hours_since(stored.facts["stored_at"])
    move_redis(home, by)
    if vendor == "sqlite":
        move_sqlite(home / "quire.sqlite3", by)
        yield from _run(home, stored)
    else:
        (home / "quire.sqlite3").unlink()
        with new_database() as url:
            load_postgresql(url, stored.sql, by)
            yield from _run(home, stored, DATABASE_URL=url)


def _run(home: Path, stored: StoredHome, **environment: str) -> Iterator[Upgraded]:
    installation = Upgraded(home, STEP, QUIRE_REDIS_PREFIX="quire:", **environment)
    installation.stored = stored
    with installation:
        yield installation


@pytest.fixture(scope="module")
def http(upgraded: Upgraded) -> Iterator[httpx.Client]:
    """A client with a key of the earlier version."""
    with upgraded.http(upgraded.stored.facts["keys"]["limited"]) as client:
        yield client


def read_job(http: httpx.Client, job_id: str) -> dict[str, Any]:
    return ended_job(http, f"/v1/completions/{job_id}")


def check_answer(reply: dict[str, Any], body: dict[str, Any]) -> None:
    assert [choice["text"] for choice in reply["choices"]] == [workload.expected_text(body)]
    usage = workload.expected_usage(body)
    assert {name: reply["usage"][name] for name in usage} == usage


def test_every_line_is_answered_once(upgraded: Upgraded, http: httpx.Client) -> None:
    path = f"/v1/batches/{upgraded.stored.facts['batch']}"
    batch = _ended_batch(http, path)
    counts = {"total": workload.LINES, "completed": workload.LINES, "failed": 0}
    assert batch["status"] == "completed"
    assert {name: batch["request_counts"][name] for name in counts} == counts
    assert batch["error_file_id"] is None
    content = http.get(f"/v1/files/{batch['output_file_id']}/content").text
    lines = [json.loads(line) for line in content.splitlines()]
    names = [f"line-{number}" for number in range(workload.LINES)]
    assert [line["custom_id"] for line in lines] == names
    for number, line in enumerate(lines):
        check_answer(line["response"]["body"], workload.line_body(number))
    expected = _summed(map(workload.line_body, range(workload.LINES)))
    assert batch["usage"]["input_tokens"] == expected["prompt_tokens"]
    assert batch["usage"]["output_tokens"] == expected["completion_tokens"]


def _ended_batch(http: httpx.Client, path: str) -> dict[str, Any]:
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        batch: dict[str, Any] = http.get(path).raise_for_status().json()
        if batch["status"] not in ("validating", "in_progress", "finalizing"):
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)


def test_every_background_job_ends(upgraded: Upgraded, http: httpx.Client) -> None:
    """Half of them continue after the tokens that workers of the earlier version published."""
    facts = upgraded.stored.facts
    for number, job_id in enumerate(facts["jobs"]):
        check_answer(read_job(http, job_id), workload.job_body(number))


def test_results_of_the_earlier_version_are_read(upgraded: Upgraded, http: httpx.Client) -> None:
    facts = upgraded.stored.facts
    for number, job_id in enumerate(facts["short"]):  # whose results Redis has
        check_answer(read_job(http, job_id), workload.short_body(number))
    for number, before in enumerate(facts["ended"]):  # and SQL
        after = read_job(http, before["id"])
        check_answer(after, workload.ended_body(number))
        assert after["choices"] == before["choices"]


_LEDGER = """
import json
from django.db.models import Count, Sum
from completions.models import UsageHour, UsageRecord
tokens = {name: Sum(name) for name in ("prompt_tokens", "completion_tokens", "cost_nanos")}
records = UsageRecord.objects.filter(api_key__name="limited")
hours = UsageHour.objects.filter(api_key__name="limited")
print(json.dumps([
    records.aggregate(requests=Count("id"), **tokens),
    hours.aggregate(requests=Sum("requests"), **tokens),
    list(records.exclude(status="completed").values("job_id", "status", "error_code")),
]))
"""


def test_usage_is_exact(upgraded: Upgraded, http: httpx.Client) -> None:
    bodies = [
        *map(workload.line_body, range(workload.LINES)),
        *map(workload.job_body, range(workload.JOBS)),
        *map(workload.ended_body, range(workload.ENDED)),
        *map(workload.short_body, range(workload.SHORT)),
    ]
    sums = _summed(bodies)
    prompt, completion = sums["prompt_tokens"], sums["completion_tokens"]
    expected = {
        "requests": len(bodies),
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cost_nanos": 3000 * prompt + 5000 * completion,
    }
    deadline = time.monotonic() + START_TIMEOUT
    while True:  # a job can be read before its usage is in SQL
        records, hours, failures = json.loads(upgraded.manage("shell", "-v0", "-c", _LEDGER))
        if records["requests"] >= len(bodies):
            break
        assert time.monotonic() < deadline, upgraded.logs()
        time.sleep(0.1)
    assert failures == []
    assert records == expected
    assert hours == expected


def _summed(bodies: Any) -> Counter[str]:
    return sum((Counter(workload.expected_usage(body)) for body in bodies), Counter())


_LIMITS = """
from completions.models import ApiKey
key = ApiKey.objects.select_related("organization").get(name="limited")
print(key.requests_per_minute, key.daily_token_budget, key.organization.max_enqueued_tokens)
"""


def test_keys_and_limits_are_the_same(upgraded: Upgraded) -> None:
    keys = upgraded.stored.facts["keys"]
    with upgraded.http(keys["tests"]) as tests:
        reply = tests.post("/v1/completions", json=workload.line_body(7)).raise_for_status()
    check_answer(reply.json(), workload.line_body(7))
    with upgraded.http(keys["limited"]) as limited:
        assert limited.get("/v1/models").status_code == 200
    with upgraded.http(keys["revoked"]) as revoked:
        assert revoked.get("/v1/models").status_code == 401
    shown = upgraded.manage("shell", "-v0", "-c", _LIMITS).split()
    assert shown == ["100000", "1000000000", "10000000"]
