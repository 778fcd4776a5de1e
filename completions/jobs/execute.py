"""The worker's side of a job: claim, publish, finish and release it, fenced by its attempt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from typing import Any, Literal, cast

import orjson

from completions.contract.usage import Usage
from completions.jobs import events
from completions.jobs.connection import Entries
from completions.jobs.new_job import Level
from completions.jobs.record import Kind
from completions.jobs.store import SyncStore
from completions.jobs.workers import DRAIN_KEPT, HEARTBEAT_TTL

MAX_WORKER_FAILURES = 3
"""Workers that a job may lose before it is taken for the cause, and fails."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that this worker now runs."""

    job_id: str
    attempt: int
    """Fences this worker's writes off once another worker claims the job."""
    request: bytes
    """JSON, see `completions.contract.job_request`."""
    seconds_left: float
    """Until its deadline."""
    sequence_number: int
    """Sequence number of the next event."""
    organization_id: str = ""
    age: float = 0.0
    """Seconds since it was submitted."""
    request_id: str = ""
    """Id of the HTTP request that made it, for logs."""
    kind: Kind = "background"
    trace: str = ""
    """W3C headers of that request's span as JSON, where it is traced."""
    level: Level = Level.LIVE
    sequences: int = 1
    size: int = 0
    """Bytes of its request and context."""

    @property
    def is_interactive(self) -> bool:
        """Whether a client waits on an open connection."""
        return self.kind in ("sync", "stream")

    @property
    def can_be_followed(self) -> bool:
        """Whether a client may read its tokens before it ends."""
        return self.kind not in ("sync", "batch")


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """A job that this worker does not run."""

    job_id: str
    reason: Literal["done", "elsewhere", "gone", "foreign"]
    """It has ended, runs elsewhere or waits to run alone, is unknown, or its record is not a
    job's."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a worker still takes on one level."""

    level: Level
    sequences: int
    bytes: int
    """The last job may exceed either; nothing is taken once one of them is used up."""
    guests: int
    """How many organizations may have one job each beyond that, unless they are in `held`."""
    held: Sequence[str] = ()
    """Organizations of which the worker has jobs on this level."""


@dataclass(frozen=True, slots=True)
class TakeReply:
    """What a worker got in one call of `Execution.take`."""

    claims: Sequence[Claim]
    settled: Mapping[str, str]
    """Jobs from messages, by id, that the worker has nothing to do for, each with the reason; or
    `unqueued` for a job of a version without levels, which must be claimed by its id."""


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What one job publishes after a step. Without choices it only asks whether to go on."""

    job_id: str
    attempt: int
    sequence_number: int
    choices: Sequence[events.ChoiceEvent]


@dataclass(frozen=True, slots=True)
class Ending:
    """The last write of a job."""

    job_id: str
    attempt: int
    sequence_number: int
    state: events.EndState
    error: events.JobError | None
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class PublishedOutput:
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


class Execution:
    """What one worker does with jobs."""

    def __init__(self, store: SyncStore, worker_id: str) -> None:
        self._store = store
        self.worker_id = worker_id
        self._takes = 0

    def claim(self, job_ids: Sequence[str]) -> list[Claim | NotClaimed]:
        """Claim jobs by their ids, whoever's turn it is."""
        replies = self._store.call_all(
            [("claim", (job_id, self.worker_id, MAX_WORKER_FAILURES)) for job_id in job_ids]
        )
        return [_read_claim(job_id, reply) for job_id, reply in zip(job_ids, replies, strict=True)]

    def take(self, model: str, rooms: Sequence[Room], message_ids: Sequence[str] = ()) -> TakeReply:
        """Claim the jobs of a model whose turn it is, and ask what became of those that messages
        name. If a call raises, the next one gets what it would have got."""
        terms = {
            "worker": self.worker_id,
            "max_worker_failures": MAX_WORKER_FAILURES,
            "model": model,
            "serial": self._takes,
            "levels": [[r.level, r.sequences, r.bytes, r.guests, list(r.held)] for r in rooms],
        }
        ((settled, jobs),) = self._store.call_all([("take", [orjson.dumps(terms), *message_ids])])
        self._takes += 1
        claims = [_read_claim(job_id.decode(), reply) for job_id, reply in jobs]
        return TakeReply(
            [claim for claim in claims if isinstance(claim, Claim)],
            {job_id.decode(): verdict.decode() for verdict, job_id in settled},
        )

    def take_again(self) -> None:
        """Let the next `take` get what the last one got: its reply could not be used."""
        self._takes -= 1

    def read_published(self, job_id: str) -> PublishedOutput:
        """Read what earlier attempts published."""
        published = PublishedOutput()
        entries = cast("Entries", self._store.client.xrange(self._store.keys.ev(job_id)))
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
        replies = self._store.call_all(calls)
        verdicts = [Verdict(code) for code in replies.pop(0)] if steps else []
        return verdicts, [reply == 1 for reply in replies]

    def _publish_args(self, steps: Sequence[StepEvent]) -> list[object]:
        args: list[object] = [self.worker_id]
        for step in steps:
            number, choices = step.sequence_number, step.choices
            event = events.encode_choices(number, choices) if choices else b""
            tokens = sum(len(gain.token_ids) for gain in choices)
            args += (step.job_id, step.attempt, number, len(choices), tokens, event)
        return args

    def _finish_args(self, ending: Ending) -> list[object]:
        event = events.encode_end(ending.sequence_number, ending.state, ending.error, ending.usage)
        usage = orjson.dumps(ending.usage) if ending.usage else ""
        error = orjson.dumps(ending.error) if ending.error else ""
        fence = ending.job_id, self.worker_id, ending.attempt
        return [*fence, ending.state, event, usage, error, ending.sequence_number]

    def release(self, jobs: Sequence[tuple[str, int]], lost: bool) -> None:
        """Return jobs (id, attempt) to the queue. With `lost`, each of them counts as having lost
        this worker, because one of them may have broken it."""
        if jobs:
            self._store.call("release", self.worker_id, int(lost), *chain.from_iterable(jobs))

    def beat(
        self, model: str, facts: dict[str, object], accepting: bool = True, metrics: bytes = b""
    ) -> bool:
        """Renew this worker's heartbeat and, if it takes jobs, its model's. `metrics` is its
        Prometheus page. Returns whether an operator wants it drained."""
        keys = self._store.keys
        pipeline = self._store.client.pipeline(transaction=False)
        pipeline.getex(keys.drain(self.worker_id), ex=DRAIN_KEPT)
        heartbeat = orjson.dumps({"model": model, "accepting": accepting, **facts})
        pipeline.set(keys.worker(self.worker_id), heartbeat, ex=HEARTBEAT_TTL)
        pipeline.set(keys.metrics(self.worker_id), metrics, ex=HEARTBEAT_TTL)
        pipeline.sadd(keys.workers, self.worker_id)
        if accepting:
            self._store.call("served", model)
        return pipeline.execute()[0] is not None

    def stop_beating(self) -> None:
        client, keys, own = self._store.client, self._store.keys, self.worker_id
        client.delete(keys.worker(own), keys.drain(own), keys.metrics(own))
        client.srem(keys.workers, own)


def _read_claim(job_id: str, reply: list[Any]) -> Claim | NotClaimed:
    verdict, *facts = reply
    if verdict != b"run":
        return NotClaimed(job_id, verdict.decode())
    attempt, request, *texts = facts
    seconds_left, seq, organization, age, request_id, kind, trace, level, sequences, size = map(
        bytes.decode, texts
    )
    return Claim(
        job_id=job_id,
        attempt=attempt,
        request=request,
        seconds_left=float(seconds_left),
        sequence_number=int(seq),
        organization_id=organization,
        age=float(age),
        request_id=request_id,
        kind=cast("Kind", kind),
        trace=trace,
        level=Level(int(level)) if level else Level.LIVE,
        sequences=int(sequences),
        size=int(size) or len(request),
    )
