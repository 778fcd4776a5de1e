"""Jobs that Redis knows, for the operator: what is queued and what runs, one job in full, and
cancelling and requeueing them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson
import redis

from completions.jobs.scripts import Scripts

MOST_LISTED = 2000
"""Open jobs that are looked at; beyond that the list says that there are more."""
_LISTED = (
    "state", "kind", "model", "organization", "key", "priority", "created", "started", "owner",
    "attempt", "prompt_tokens", "generated", "cancel", "request_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job as Redis has it, without what it was asked. Times are Unix seconds."""

    id: str
    state: str
    kind: str
    model: str
    organization_id: int
    api_key_id: int
    priority: int
    created: float
    started: float | None
    worker: str
    attempt: int
    prompt_tokens: int
    generated: int
    """Tokens published so far."""
    cancelling: bool
    request_id: str

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running")


@dataclass(frozen=True, slots=True)
class JobDetails:
    """All that Redis has of one job."""

    job: LiveJob
    request: dict[str, Any] | None
    """What its worker was told; None once it has ended."""
    finished: float | None
    deadline: float
    losses: int
    error: dict[str, Any] | None
    usage: dict[str, Any] | None
    events: int
    """How many entries its stream has."""


def open_jobs(client: redis.Redis, prefix: str) -> tuple[list[LiveJob], int]:
    """Jobs that have not ended, the oldest first, and how many there are in all."""
    ids = cast("list[bytes]", client.zrange(f"{prefix}open", 0, MOST_LISTED - 1))
    total = client.zcard(f"{prefix}open")
    pipeline = client.pipeline(transaction=False)
    for job_id in ids:
        pipeline.hmget(f"{prefix}job:{job_id.decode()}", _LISTED)
    found = [
        _live(job_id.decode(), values)
        for job_id, values in zip(ids, pipeline.execute(), strict=True)
        if values[0] is not None
    ]
    return sorted((job for job in found if not job.ended), key=lambda job: job.created), total


def queue_depths(jobs: Sequence[LiveJob]) -> Counter[str]:
    """Queued jobs by kind."""
    return Counter(job.kind for job in jobs if job.state == "queued")


def details(client: redis.Redis, prefix: str, job_id: str) -> JobDetails | None:
    """A job that Redis knows; None for one that has expired there."""
    raw = cast("dict[bytes, bytes]", client.hgetall(f"{prefix}job:{job_id}"))
    if not raw:
        return None
    fields = {name.decode(): value for name, value in raw.items()}
    return JobDetails(
        job=_live(job_id, [fields.get(name) for name in _LISTED]),
        request=_json(fields.get("request")),
        finished=_float(fields.get("finished")),
        deadline=float(fields["deadline"]),
        losses=int(fields.get("losses") or 0),
        error=_json(fields.get("error")),
        usage=_json(fields.get("usage")),
        events=client.xlen(f"{prefix}ev:{job_id}"),
    )


def find(client: redis.Redis, prefix: str, typed: str) -> list[LiveJob]:
    """Jobs by their id, or open ones by that of their HTTP request."""
    found = details(client, prefix, typed)
    if found is not None:
        return [found.job]
    return [job for job in open_jobs(client, prefix)[0] if typed and job.request_id == typed]


def cancel(client: redis.Redis, prefix: str, job_id: str) -> str | None:
    """Cancel a job. Returns the state that it was in; None when Redis does not know it."""
    return _state(Scripts(client, prefix).call("cancel", [job_id]))


def requeue(client: redis.Redis, prefix: str, job_id: str) -> str | None:
    """Take a job from its worker, or publish a queued one again, within seconds; whoever claims it
    goes on from the last published token. Returns the state that it was in, None as above."""
    return _state(Scripts(client, prefix).call("requeue", [job_id]))


def _state(reply: bytes | None) -> str | None:
    return reply.decode() if reply else None


def _live(job_id: str, values: Sequence[bytes | None]) -> LiveJob:
    fields = {
        name: value.decode()
        for name, value in zip(_LISTED, values, strict=True)
        if value is not None
    }
    return LiveJob(
        id=job_id,
        state=fields["state"],
        kind=fields["kind"],
        model=fields["model"],
        organization_id=int(fields["organization"]),
        api_key_id=int(fields["key"]),
        priority=int(fields["priority"]),
        created=float(fields["created"]),
        started=float(fields["started"]) if "started" in fields else None,
        worker=fields.get("owner", ""),
        attempt=int(fields.get("attempt") or 0),
        prompt_tokens=int(fields.get("prompt_tokens") or 0),
        generated=int(fields.get("generated") or 0),
        cancelling="cancel" in fields,
        request_id=fields.get("request_id", ""),
    )


def _json(raw: bytes | None) -> Any:
    return orjson.loads(raw) if raw else None


def _float(raw: bytes | None) -> float | None:
    return float(raw) if raw else None
