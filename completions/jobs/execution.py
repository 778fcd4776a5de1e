"""The worker's side of a job: claim, publish, finish, release, fenced by the attempt number."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, cast

import orjson
import redis

from completions.jobs import events
from completions.jobs.connection import Entries
from completions.jobs.scripts import Scripts
from completions.jobs.submission import Kind
from completions.jobs.workers import DRAIN_KEPT

MAX_LOSSES = 3
"""Workers that may die under a job before it is taken for their murderer."""
HEARTBEAT_TTL = 10
"""Seconds after which a worker that stopped beating counts as dead."""
RECHECKS = (30.0, 5.0)
"""Seconds after which the reconciler looks again at a queued job, and at a running one: the latter
is how long a worker's death may go unnoticed."""
OVERTIME = 60.0
"""Seconds past a job's deadline after which it fails even if a live worker holds it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that this worker now runs. `attempt` fences its writes off once another claims it."""

    job_id: str
    attempt: int
    request: Any
    """As its web tier wrote it; None if that is no JSON."""
    seconds_left: float
    sequence_number: int
    """Of the next event."""
    organization: str = ""
    """Whose job it is."""
    age: float = 0.0
    """Seconds since it was submitted."""
    request_id: str = ""
    """Of the HTTP request that made it, for logs."""
    kind: Kind = "background"
    trace: str = ""
    """W3C headers of that request's span as JSON, where it is traced."""

    @property
    def watched(self) -> bool:
        """Whether somebody may want its tokens before its end."""
        return self.kind not in ("sync", "batch")


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """Nothing to do for this message: the job is done, runs elsewhere, is unknown, or its record
    is none of a job."""

    job_id: str
    reason: Literal["done", "elsewhere", "gone", "foreign"]


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What one job publishes after a step; no choices only asks whether to go on."""

    job_id: str
    attempt: int
    sequence_number: int
    choices: Sequence[events.Choice]

    @property
    def num_tokens(self) -> int:
        return sum(len(token_ids) for _, token_ids, *_ in self.choices)


@dataclass(frozen=True, slots=True)
class Ending:
    """The terminal write of a job."""

    job_id: str
    attempt: int
    sequence_number: int
    state: events.EndState
    error: events.JobError | None
    usage: events.Usage | None


@dataclass(frozen=True, slots=True)
class Published:
    """What earlier attempts published: token ids by choice index, and which choices they ended."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)


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
        self._prefix = prefix
        self._scripts = Scripts(client, prefix)
        self.worker_id = worker_id

    def claim(self, job_ids: Sequence[str]) -> list[Claim | NotClaimed]:
        """Try to take jobs, in one round trip."""
        replies = self._scripts.call_all(
            [("claim", (job_id, self.worker_id, MAX_LOSSES)) for job_id in job_ids]
        )
        return [
            self._claimed(job_id, reply) for job_id, reply in zip(job_ids, replies, strict=True)
        ]

    @staticmethod
    def _claimed(job_id: str, reply: list[Any]) -> Claim | NotClaimed:
        verdict = reply[0].decode()
        if verdict != "run":
            return NotClaimed(job_id, verdict)
        _, attempt, request, seconds_left, sequence_number, *told = reply
        organization, age, request_id, kind, trace = told
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

    def published(self, job_id: str) -> Published:
        """What earlier attempts published."""
        published = Published()
        entries = cast("Entries", self._client.xrange(f"{self._prefix}ev:{job_id}"))
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
        who = [ending.job_id, self.worker_id, ending.attempt]
        return [*who, ending.state, event, usage, error, ending.sequence_number]

    def release(self, jobs: Sequence[tuple[str, int]], lost: bool) -> None:
        """Give jobs (id, attempt) back to the queue; `lost` counts against a job that killed us."""
        if jobs:
            flat = [part for job in jobs for part in job]
            self._scripts.call("release", [self.worker_id, int(lost), *flat])

    def beat(
        self, model: str, facts: dict[str, Any], accepting: bool = True, metrics: bytes = b""
    ) -> bool:
        """Say that this worker lives and, unless it is drained, serves `model`. `metrics` is its
        Prometheus page. Returns whether it is to be drained: to take no new jobs until told
        otherwise."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.getex(f"{self._prefix}drain:{self.worker_id}", ex=DRAIN_KEPT)
        heartbeat = orjson.dumps({"model": model, "accepting": accepting, **facts})
        pipeline.set(f"{self._prefix}worker:{self.worker_id}", heartbeat, ex=HEARTBEAT_TTL)
        pipeline.set(f"{self._prefix}metrics:{self.worker_id}", metrics, ex=HEARTBEAT_TTL)
        pipeline.sadd(f"{self._prefix}workers", self.worker_id)
        if accepting:
            self._scripts.call("served", [model])
        return pipeline.execute()[0] is not None

    def stop_beating(self) -> None:
        pipeline = self._client.pipeline(transaction=False)
        names = ("worker", "drain", "metrics")
        pipeline.delete(*(f"{self._prefix}{name}:{self.worker_id}" for name in names))
        pipeline.srem(f"{self._prefix}workers", self.worker_id)
        pipeline.execute()


def _json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def reconcile(client: redis.Redis, prefix: str, most: int = 1000) -> list[Lost]:
    """Open jobs whose message or worker was lost; expires and cancels what is over."""
    reply = Scripts(client, prefix).call("reconcile", [most, *RECHECKS, OVERTIME])
    return [
        Lost(job_id.decode(), model.decode(), int(priority), request_id.decode())
        for job_id, model, priority, request_id in cast("list[list[bytes]]", reply)
    ]
