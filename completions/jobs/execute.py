"""The worker's side of a job: claim, publish, finish and release it, fenced by the attempt number;
and the reconciler, which finds jobs that workers lost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Literal, cast

import orjson
import redis

from completions.jobs import events
from completions.jobs.connection import Entries
from completions.jobs.record import Keys, Kind
from completions.jobs.scripts import Scripts
from completions.jobs.workers import DRAIN_KEPT, HEARTBEAT_TTL

MAX_LOSSES = 3
"""Workers that a job may lose before it counts as what kills them, and fails."""
RECHECKS = (30.0, 5.0)
"""Seconds after which the reconciler looks again at a queued job, and at a running one; the latter
is how long a worker's death can go unnoticed."""
FAILED_AFTER: Final = 60.0
"""Seconds past its deadline after which a job fails even if a live worker holds it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that this worker now runs."""

    job_id: str
    attempt: int
    """Fences this worker's writes off once another worker claims the job."""
    request: Any
    """As the web tier wrote it; None if that is not JSON."""
    seconds_left: float
    """Until its deadline."""
    sequence_number: int
    """Number of the next event."""
    organization: str = ""
    age: float = 0.0
    """Seconds since it was submitted."""
    request_id: str = ""
    """Id of the HTTP request that made it, for logs."""
    kind: Kind = "background"
    trace: str = ""
    """W3C headers of that request's span as JSON, where it is traced."""

    @property
    def watched(self) -> bool:
        """Whether a client may read its tokens before its end."""
        return self.kind not in ("sync", "batch")


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """A job that this worker does not run."""

    job_id: str
    reason: Literal["done", "elsewhere", "gone", "foreign"]
    """It has ended, runs elsewhere, is unknown, or its record is not a job's."""


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What one job publishes after a step. Without choices it only asks whether to go on."""

    job_id: str
    attempt: int
    sequence_number: int
    choices: Sequence[events.EncodedChoice]

    @property
    def num_tokens(self) -> int:
        return sum(len(token_ids) for _, token_ids, *_ in self.choices)


@dataclass(frozen=True, slots=True)
class Ending:
    """The last write of a job."""

    job_id: str
    attempt: int
    sequence_number: int
    state: events.EndState
    error: events.JobError | None
    usage: events.Usage | None


@dataclass(frozen=True, slots=True)
class Published:
    """What earlier attempts published."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    """Token ids by choice."""
    ended: set[int] = field(default_factory=set)
    """Choices that have ended."""


class Verdict(IntEnum):
    """Redis's answer to a published step."""

    GO_ON = 0
    CANCEL = 1
    NOT_YOURS = 2


@dataclass(frozen=True, slots=True)
class Lost:
    """A job whose message must be published again."""

    job_id: str
    model: str
    priority: int
    request_id: str = ""


class Execution:
    """Bound to one synchronous client, key prefix and worker."""

    def __init__(self, client: redis.Redis, prefix: str, worker_id: str) -> None:
        self._client = client
        self._keys = Keys(prefix)
        self._scripts = Scripts(client, prefix)
        self.worker_id = worker_id

    def claim(self, job_ids: Sequence[str]) -> list[Claim | NotClaimed]:
        """Try to claim jobs, in one round trip."""
        replies = self._scripts.call_all(
            [("claim", (job_id, self.worker_id, MAX_LOSSES)) for job_id in job_ids]
        )
        return [_claim(job_id, reply) for job_id, reply in zip(job_ids, replies, strict=True)]

    def published(self, job_id: str) -> Published:
        """What earlier attempts published."""
        published = Published()
        entries = cast("Entries", self._client.xrange(self._keys.ev(job_id)))
        for _, fields in entries:
            decoded = events.decode(fields[b"d"])
            if isinstance(decoded, list):
                for choice in decoded:
                    published.tokens.setdefault(choice.index, []).extend(choice.token_ids)
                    if choice.finish_reason is not None:
                        published.ended.add(choice.index)
        return published

    def publish(
        self, steps: Sequence[StepEvent], endings: Sequence[Ending]
    ) -> tuple[list[Verdict], list[bool]]:
        """Append one step of many jobs and end some, in one round trip; repeating it is harmless.

        Returns a verdict per step, and per ending whether it was this worker's to write.
        """
        calls = [("publish", self._publish_args(steps))] if steps else []
        calls += [("finish", self._finish_args(ending)) for ending in endings]
        replies = self._scripts.call_all(calls)
        verdicts = [Verdict(code) for code in replies.pop(0)] if steps else []
        return verdicts, [reply == 1 for reply in replies]

    def _publish_args(self, steps: Sequence[StepEvent]) -> list[Any]:
        args: list[Any] = [self.worker_id]
        for step in steps:
            event = (
                events.encode_choices(step.sequence_number, step.choices) if step.choices else b""
            )
            args += (step.job_id, step.attempt, step.sequence_number)
            args += (len(step.choices), step.num_tokens, event)
        return args

    def _finish_args(self, ending: Ending) -> list[Any]:
        event = events.encode_end(ending.sequence_number, ending.state, ending.error, ending.usage)
        usage = orjson.dumps(ending.usage) if ending.usage else ""
        error = orjson.dumps(ending.error) if ending.error else ""
        fence = [ending.job_id, self.worker_id, ending.attempt]
        return [*fence, ending.state, event, usage, error, ending.sequence_number]

    def release(self, jobs: Sequence[tuple[str, int]], lost: bool) -> None:
        """Give jobs (id, attempt) back to the queue. `lost` counts as a loss of each, because one
        of them may have broken this worker."""
        if jobs:
            flat = [part for job in jobs for part in job]
            self._scripts.call("release", [self.worker_id, int(lost), *flat])

    def beat(
        self, model: str, facts: dict[str, Any], accepting: bool = True, metrics: bytes = b""
    ) -> bool:
        """Renew this worker's heartbeat and, if it takes jobs, its model's. `metrics` is its
        Prometheus page. Returns whether an operator wants it to be drained."""
        keys = self._keys
        pipeline = self._client.pipeline(transaction=False)
        pipeline.getex(keys.drain(self.worker_id), ex=DRAIN_KEPT)
        heartbeat = orjson.dumps({"model": model, "accepting": accepting, **facts})
        pipeline.set(keys.worker(self.worker_id), heartbeat, ex=HEARTBEAT_TTL)
        pipeline.set(keys.metrics(self.worker_id), metrics, ex=HEARTBEAT_TTL)
        pipeline.sadd(keys.workers, self.worker_id)
        if accepting:
            self._scripts.call("served", [model])
        return pipeline.execute()[0] is not None

    def stop_beating(self) -> None:
        """Remove this worker from the live ones."""
        keys = self._keys
        pipeline = self._client.pipeline(transaction=False)
        pipeline.delete(*(key(self.worker_id) for key in (keys.worker, keys.drain, keys.metrics)))
        pipeline.srem(keys.workers, self.worker_id)
        pipeline.execute()


def _claim(job_id: str, reply: list[Any]) -> Claim | NotClaimed:
    """The reply of `claim.lua`."""
    verdict = reply[0].decode()
    if verdict != "run":
        return NotClaimed(job_id, verdict)
    _, attempt, request, seconds_left, sequence_number, *facts = reply
    organization, age, request_id, kind, trace = facts
    return Claim(
        job_id=job_id,
        attempt=int(attempt),
        request=_json(request),
        seconds_left=float(seconds_left),
        sequence_number=int(sequence_number),
        organization=organization.decode(),
        age=float(age),
        request_id=request_id.decode(),
        kind=kind.decode(),
        trace=trace.decode(),
    )


def _json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def reconcile(client: redis.Redis, prefix: str, most: int = 1000) -> list[Lost]:
    """End jobs whose time is up or whose client has gone. Returns open jobs whose message or worker
    was lost."""
    reply = Scripts(client, prefix).call("reconcile", [most, *RECHECKS, FAILED_AFTER])
    return [
        Lost(job_id.decode(), model.decode(), int(priority), request_id.decode())
        for job_id, model, priority, request_id in cast("list[list[bytes]]", reply)
    ]
