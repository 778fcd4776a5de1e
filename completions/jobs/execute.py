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
_SHOWS: Mapping[str, object] = {"shows": True}
"""What a heartbeat says of a worker that shows steps, and stores what others have shown."""
_STORING_KEPT = 60
"""Seconds after the last heartbeat of an earlier worker was seen until steps are shown alone."""
_LOOK_INTERVAL = 5
"""Seconds between two looks for heartbeats of earlier workers."""


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
    reader: str = ""
    """The web process that reads its stream, or empty."""

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


@dataclass(slots=True)
class StepEvent:
    """What one job publishes after a step. Without choices it only asks whether to go on."""

    job_id: str
    attempt: int
    sequence_number: int
    choices: Sequence[events.ChoiceEvent]
    age: float = 0.0
    """Seconds since the first of its tokens were generated, where they were not published at
    once."""
    _gains: bytes = field(default=b"", repr=False, compare=False)

    @classmethod
    def join(cls, steps: Sequence["StepEvent"]) -> "StepEvent":
        """Join consecutive steps of a job."""
        if len(steps) == 1:
            return steps[0]
        first = steps[0]
        choices = [choice for step in steps for choice in step.choices]
        gains = b",".join([step.encode() for step in steps])
        return cls(
            first.job_id, first.attempt, first.sequence_number, choices, first.age, _gains=gains
        )

    def encode(self) -> bytes:
        """Return the choices as `events.encode_gains` does, which runs once: what is shown is
        stored too."""
        if not self._gains and self.choices:
            self._gains = events.encode_gains(self.choices)
        return self._gains

    def encode_line(self) -> bytes:
        count, tokens = len(self.choices), self.count_tokens()
        return events.encode_line(
            self.job_id, self.attempt, self.sequence_number, count, tokens, self.encode()
        )

    def list_numbers(self) -> tuple[int, int, int, float]:
        """Return its sequence number, its numbers of choices and of tokens, and its age, as the
        scripts read them."""
        return self.sequence_number, len(self.choices), self.count_tokens(), self.age

    def make_event(self) -> bytes:
        """Return the event to store, empty if there are no choices."""
        gains = self.encode()
        return events.make_event(self.sequence_number, gains) if gains else b""

    def count_tokens(self) -> int:
        return sum([len(choice.token_ids) for choice in self.choices])


@dataclass(frozen=True, slots=True)
class Ending:
    """The last write of a job."""

    job_id: str
    attempt: int
    sequence_number: int
    state: events.EndState
    error: events.JobError | None
    usage: Usage | None
    last: StepEvent | None = None
    """What the job gained last, if no step of the same output stores it."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a worker sends in one round trip."""

    steps: Sequence[StepEvent] = ()
    """What is stored."""
    endings: Sequence[Ending] = ()
    shown: Sequence[tuple[str, StepEvent]] = ()
    """What is shown to web processes: their ids, and the steps."""
    is_complete: bool = False
    """Whether `steps` has all jobs with a reader, and all that was shown of them before."""


class Showing(IntEnum):
    """Redis's answer to what a worker shows."""

    SHOWN = 0
    STORE = 1
    """It was shown; from now on, every step must be stored too."""
    REFUSED = 2
    """Nothing was shown. The worker must send a complete output first."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Redis's answer to an output."""

    verdicts: Sequence["Verdict"] = ()
    """For each step."""
    written: Sequence[bool] = ()
    """For each ending, whether it was this worker's to write."""
    showing: Showing = Showing.SHOWN


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
    UNREAD = 3
    """Go on, but the web process that read its stream has gone."""


class Execution:
    """What one worker does with jobs."""

    def __init__(self, store: SyncStore, worker_id: str) -> None:
        self._store = store
        self.worker_id = worker_id
        self._takes = 0

    def claim(self, job_ids: Sequence[str]) -> list[Claim | NotClaimed]:
        """Claim jobs by their ids, in any order of turns."""
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
    ) -> tuple[Sequence[Verdict], Sequence[bool]]:
        """Append one step of many jobs and end some, as :meth:`send`. Returns a verdict per step,
        and per ending whether it was this worker's to write."""
        reply = self.send(Output(steps, endings))
        return reply.verdicts, reply.written

    def send(self, output: Output) -> Reply:
        """Store steps, show steps and end jobs, in this order and in one round trip; repeating it
        is harmless."""
        steps, shown = output.steps, output.shown
        calls = [("publish", self._publish_args(steps, output.is_complete))] if steps else []
        calls += [("show", self._show_args(shown))] if shown else []
        calls += [("finish", self._finish_args(ending)) for ending in output.endings]
        replies = self._store.call_all(calls)
        verdicts = [Verdict(code) for code in replies.pop(0)] if steps else []
        showing = Showing(replies.pop(0)) if shown else Showing.SHOWN
        return Reply(verdicts, [reply == 1 for reply in replies], showing)

    def _publish_args(self, steps: Sequence[StepEvent], is_complete: bool) -> list[object]:
        args: list[object] = [self.worker_id, int(is_complete)]
        for step in steps:
            args += (step.job_id, step.attempt, *step.list_numbers(), step.make_event())
        return args

    def _show_args(self, shown: Sequence[tuple[str, StepEvent]]) -> list[object]:
        lines: dict[str, list[bytes]] = {}
        for web_id, step in shown:
            lines.setdefault(web_id, []).append(step.encode_line())
        args: list[object] = [self.worker_id]
        for web_id, own in lines.items():
            args += (web_id, events.join_lines(own))
        return args

    def _finish_args(self, ending: Ending) -> list[object]:
        event = events.encode_end(ending.sequence_number, ending.state, ending.error, ending.usage)
        usage = orjson.dumps(ending.usage) if ending.usage else ""
        error = orjson.dumps(ending.error) if ending.error else ""
        fence = ending.job_id, self.worker_id, ending.attempt
        last = ending.last
        gained = [*last.list_numbers(), last.make_event()] if last else [0, 0, 0, 0, ""]
        return [*fence, ending.state, event, usage, error, ending.sequence_number, *gained]

    def release(self, jobs: Sequence[tuple[str, int]], lost: bool) -> None:
        """Return jobs (id, attempt) to the queue. With `lost`, each of them counts as having lost
        this worker, because one of them may have broken it."""
        if jobs:
            self._store.call("release", self.worker_id, int(lost), *chain.from_iterable(jobs))

    def beat(
        self, model: str, facts: dict[str, object], accepting: bool = True, metrics: bytes = b""
    ) -> bool:
        """Renew this worker's heartbeat and, if it takes jobs, its model's. `metrics` is its
        Prometheus page. Returns whether an operator wants it drained.

        One worker every few seconds looks whether all that live know what others have shown."""
        keys = self._store.keys
        pipeline = self._store.client.pipeline(transaction=False)
        pipeline.getex(keys.drain(self.worker_id), ex=DRAIN_KEPT)
        heartbeat = orjson.dumps({"model": model, "accepting": accepting, **_SHOWS, **facts})
        pipeline.set(keys.worker(self.worker_id), heartbeat, ex=HEARTBEAT_TTL)
        pipeline.set(keys.metrics(self.worker_id), metrics, ex=HEARTBEAT_TTL)
        pipeline.sadd(keys.workers, self.worker_id)
        pipeline.set(keys.looked, 1, ex=_LOOK_INTERVAL, nx=True)
        if accepting:
            self._store.call("served", model)
        drain, *_, is_first = pipeline.execute()
        if is_first:
            self._look_for_earlier_workers()
        return drain is not None

    def _look_for_earlier_workers(self) -> None:
        """Have every step stored while a worker lives that would take a job without what its worker
        has shown: one of a version without `show.lua`. Until version 0.3."""
        beats = [beat for _, beat, _, _ in self._store.call("workers")]
        if any(b'"shows":true' not in beat for beat in beats):
            self._store.client.set(self._store.keys.storing, 1, ex=_STORING_KEPT)

    def stop_beating(self) -> None:
        client, keys, own = self._store.client, self._store.keys, self.worker_id
        client.delete(keys.worker(own), keys.drain(own), keys.metrics(own))
        client.delete(keys.shown(own), keys.attention(own))
        client.srem(keys.workers, own)


def _read_claim(job_id: str, reply: list[Any]) -> Claim | NotClaimed:
    verdict, *facts = reply
    if verdict != b"run":
        return NotClaimed(job_id, verdict.decode())
    attempt, request, *texts = facts
    (
        seconds_left, seq, organization, age, request_id, kind, trace, level, sequences, size,
        reader,
    ) = map(bytes.decode, texts)  # fmt: skip
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
        reader=reader,
    )
