"""The record of a job: one list of fields for Python and Lua."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.contract.job_request import JobRequest, decode_job_request
from completions.contract.sampling import SamplingParams
from completions.contract.usage import Usage
from completions.jobs import operate
from completions.jobs.events import JobError
from completions.jobs.new_job import _SHARED_FIELDS, summarize_parameters
from completions.jobs.record import (
    ENDED,
    RECORD_FIELDS,
    SCRIPT_FIELDS,
    JobRecord,
    redis_name,
)
from completions.jobs.store import JobStore
from completions.models import JobStatus
from completions.responses.completion import STATUS
from tests.completions.jobs.job_making import PREFIX, REQUEST, ending, new_job, step

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = {path.name: path.read_text() for path in (ROOT / "completions/jobs/lua").rglob("*.lua")}


def arguments(text: str) -> list[str]:
    """The arguments of a call, up to its closing bracket."""
    found, depth, quoted, start = [], 0, False, 0
    for place, char in enumerate(text):
        quoted ^= char == "'"
        if not quoted and depth == 0 and char in ",)":
            found.append(text[start:place].strip())
            start = place + 1
            if char == ")":
                return found
        depth += 0 if quoted else (char in "([{") - (char in ")]}")
    raise AssertionError(text)


def fields_in(script: str) -> Iterator[str]:
    """Fields of a job's hash that a script names."""
    for call in script.split("redis.call(")[1:]:
        command, *rest = arguments(call)
        if not command.startswith("'H") or not rest.pop(0).startswith(("key", "job_key(")):
            continue
        if command == "'HSET'":
            rest = rest[::2]
        elif command in ("'HINCRBY'", "'HSETNX'"):
            rest = rest[:1]
        yield from (part.strip("'") for part in rest if part.startswith("'"))
        yield from (redis_name(part[6:]) for part in rest if part.startswith("REDIS."))


def test_the_scripts_name_no_other_fields() -> None:
    named = {name for text in SCRIPTS.values() for name in fields_in(text)}
    assert {"state", "owner", "cancel", "republished", "held"} <= named
    assert named <= {*map(redis_name, RECORD_FIELDS), *SCRIPT_FIELDS}


def test_every_field_is_written_somewhere() -> None:
    written = {name for text in SCRIPTS.values() for name in fields_in(text)}
    job = new_job(prices=(1, 1, 2), stored=True, trace="{}")
    written |= set(job.record_fields("web-1")[::2])
    assert {*map(redis_name, RECORD_FIELDS), *SCRIPT_FIELDS} <= written
    assert not set(RECORD_FIELDS) & set(SCRIPT_FIELDS)


def test_the_scripts_know_the_states() -> None:
    body = SCRIPTS["keys_and_records.lua"].split("local function ended(state)")[1].split("end")[0]
    assert set(re.findall(r"'(\w+)'", body)) <= ENDED
    ended = re.findall(r"state == '(\w+)'", SCRIPTS["keys_and_records.lua"])
    assert set(ended) == ENDED


def test_sql_and_the_api_know_the_states() -> None:
    assert set(JobStatus.values) == {"queued", *ENDED}
    assert set(STATUS) == {"queued", "running", *ENDED}


@pytest.mark.integration
async def test_what_is_submitted_is_read_again(submission, worker, redis_client):
    job = new_job(
        request=JobRequest(REQUEST.prompts, SamplingParams(max_tokens=3), adapters=("polite",)),
        request_id="req_1", prices=(1, 1, 2), context=b'{"id":"cmpl-1"}',
    )  # fmt: skip
    await submission.submit(job)
    queued = operate.read_job(JobStore(redis_client, PREFIX), "cmpl-1")
    for name in _SHARED_FIELDS:
        assert getattr(queued, name) == getattr(job, name), name
    assert decode_job_request(queued.request) == job.request
    expected = {"prompts": 1, "max_tokens": 3, "temperature": 1.0}
    assert queued.parameters == summarize_parameters(job.request) == expected
    assert queued.deadline == pytest.approx(queued.created + job.seconds)

    (claim,) = worker.claim(["cmpl-1"])
    worker.publish([step(claim, [(0, [5], "a", None, None)])], [])
    await submission.cancel("cmpl-1")
    running = await submission.fetch("cmpl-1")
    assert (running.state, running.owner, running.attempt) == ("running", worker.worker_id, 1)
    assert (running.generated, running.sequence_number, running.cancelling) == (1, 2, True)
    assert running.cancelled_by == "client"
    assert (running.request, running.has_ended, running.context) == (b"", False, job.context)

    error = JobError("worker_error")
    worker.publish([], [ending(claim, 2, "failed", error)])
    ended = await submission.fetch("cmpl-1")
    assert (ended.state, ended.has_ended, ended.error, ended.usage) == (
        "failed", True, error, Usage(2, 1),
    )  # fmt: skip
    assert (ended.owner, ended.worker) == ("", worker.worker_id)
    assert ended.created <= ended.started <= ended.first <= ended.finished


@given(st.sets(st.sampled_from([*RECORD_FIELDS])))
def test_a_record_of_a_part_has_defaults_for_the_rest(names) -> None:
    required = {"kind": b"sync", "state": b"queued", "model": b"m", "organization_id": b"1",
                "api_key_id": b"2", "created": b"1.5"}  # fmt: skip
    raw = {redis_name(name).encode(): value for name, value in required.items()}
    whole = JobRecord.read("a", raw)
    keys = {name: redis_name(name).encode() for name in RECORD_FIELDS}
    absent = {keys[name]: None for name in names if keys[name] not in raw}
    assert JobRecord.read("a", {**raw, **absent}) == whole
    assert (whole.api_key_id, whole.created, whole.error, whole.context) == (2, 1.5, None, b"")
    with pytest.raises(TypeError):
        JobRecord.read("a", {**raw, b"model": None})
