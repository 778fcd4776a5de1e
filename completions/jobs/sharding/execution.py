"""The worker's side of jobs that lie in several shards.

A shard that does not answer must not delay the jobs of the others: what is published to it waits
here, a thread looks when it answers again, and the next heartbeat takes it back.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from redis.exceptions import RedisError

from completions.jobs.execute import (
    Claim,
    Execution,
    NotClaimed,
    Output,
    PublishedOutput,
    Reply,
    Room,
    Showing,
    TakeReply,
    Verdict,
)
from completions.jobs.sharding.shards import find_shard
from completions.jobs.store import SyncStore

logger = logging.getLogger(__name__)

_PROBE_INTERVAL = 0.5
_T = TypeVar("_T")


class ShardedExecution(Execution):
    """What one worker does with jobs of several shards. Its methods raise RedisError only if no
    shard answers."""

    def __init__(self, stores: Sequence[SyncStore], worker_id: str) -> None:
        super().__init__(stores[0], worker_id)
        self._shards = [_Shard(store, worker_id) for store in stores]
        self._first = 0
        """The shard that is asked first for jobs, in turn."""
        self._published: dict[str, PublishedOutput] = {}
        """What earlier attempts published of the jobs that are about to run."""

    def _find(self, job_id: str) -> "_Shard":
        return self._shards[find_shard(job_id, len(self._shards))]

    def _group(
        self, items: Iterable[_T], job_id_of: Callable[[_T], str]
    ) -> dict["_Shard", list[_T]]:
        groups: dict[_Shard, list[_T]] = {}
        for item in items:
            groups.setdefault(self._find(job_id_of(item)), []).append(item)
        return groups

    def claim(self, job_ids: Sequence[str]) -> list[Claim | NotClaimed]:
        outcomes: list[Claim | NotClaimed] = []
        for shard, ids in self._group(job_ids, str).items():
            unanswered = [NotClaimed(job_id, "elsewhere") for job_id in ids]
            outcomes += shard.ask(partial(Execution.claim, job_ids=ids)) or unanswered
        return outcomes

    def take(self, model: str, rooms: Sequence[Room], message_ids: Sequence[str] = ()) -> TakeReply:
        messages = self._group(message_ids, str)
        claims: list[Claim] = []
        settled: dict[str, str] = {}
        first, self._first = self._first, (self._first + 1) % len(self._shards)
        for shard in (*self._shards[first:], *self._shards[:first]):
            reply = shard.take(model, rooms, messages.get(shard, []), self._published)
            if reply is not None:
                claims += reply.claims
                settled.update(reply.settled)
                rooms = [_reduce(room, reply.claims) for room in rooms]
        self._require_one("takes jobs")
        return TakeReply(claims, settled)

    def read_published(self, job_id: str) -> PublishedOutput:
        return self._published.pop(job_id)

    def send(self, output: Output) -> Reply:
        """Send to all shards. Where one does not answer, the jobs go on."""
        steps = self._group(output.steps, lambda step: step.job_id)
        endings = self._group(output.endings, lambda ending: ending.job_id)
        shown = self._group(output.shown, lambda each: each[1].job_id)
        verdicts: dict[str, Verdict] = {}
        written: dict[str, bool] = {}
        showing = Showing.SHOWN
        for shard in dict.fromkeys((*steps, *endings, *shown)):
            own = Output(
                steps.get(shard, ()), endings.get(shard, ()), shown.get(shard, ()),
                output.is_complete,
            )  # fmt: skip
            shard.unsent.append(own)
            if (reply := shard.ask(shard.flush)) is not None:
                verdicts.update(
                    zip((step.job_id for step in own.steps), reply.verdicts, strict=True)
                )
                written.update(zip((it.job_id for it in own.endings), reply.written, strict=True))
                showing = max(showing, reply.showing)
        return Reply(
            [verdicts.get(step.job_id, Verdict.GO_ON) for step in output.steps],
            [written.get(ending.job_id, True) for ending in output.endings],
            showing,
        )

    def release(self, jobs: Sequence[tuple[str, int]], lost: bool) -> None:
        """Return jobs to the queue. Those of a shard that does not answer return once this worker's
        heartbeat has expired there."""
        for shard, own in self._group(jobs, lambda job: job[0]).items():
            shard.ask(partial(Execution.release, jobs=own, lost=lost))

    def beat(
        self, model: str, facts: dict[str, object], accepting: bool = True, metrics: bytes = b""
    ) -> bool:
        wanted = [shard.beat(model, facts, accepting, metrics) for shard in self._shards]
        self._require_one("answers")
        return any(wanted)

    def stop_beating(self) -> None:
        for shard in self._shards:
            shard.ask(Execution.stop_beating)

    def _require_one(self, what: str) -> None:
        if not any(shard.is_up for shard in self._shards):
            raise RedisError(f"no shard {what}")


class _Shard:
    """One shard, as a worker sees it."""

    def __init__(self, store: SyncStore, worker_id: str) -> None:
        self._client = store.client
        self._execution = Execution(store, worker_id)
        self.unsent: deque[Output] = deque()
        """What was published and has not arrived, the oldest first."""
        self.is_up = False
        """Whether the last heartbeat arrived, and all since."""
        self._answers = True
        """Whether a heartbeat is worth a try."""

    def ask(self, call: Callable[[Execution], _T]) -> _T | None:
        """Return the result of a call; None while the shard is down."""
        if not self.is_up:
            return None
        return self._try(call)

    def _try(self, call: Callable[[Execution], _T]) -> _T | None:
        try:
            return call(self._execution)
        except RedisError as error:
            logger.warning("a shard does not answer: %s", error)
            self.is_up = self._answers = False
            threading.Thread(target=self._probe, name="probe", daemon=True).start()
            return None

    def _probe(self) -> None:
        while not self._answers:
            time.sleep(_PROBE_INTERVAL)
            try:
                self._answers = bool(self._client.ping())
            except RedisError:
                continue

    def flush(self, execution: Execution) -> Reply:
        """Send what has not arrived. Returns the reply to the last of it."""
        reply = Reply()
        while self.unsent:
            reply = execution.send(self.unsent[0])
            self.unsent.popleft()
        return reply

    def beat(self, model: str, facts: dict[str, object], accepting: bool, metrics: bytes) -> bool:
        """Send a heartbeat, if the shard may answer, and what waited for it."""
        if not self._answers:
            return False
        wanted = self._try(lambda it: it.beat(model, facts, accepting, metrics))
        self.is_up = wanted is not None
        self.ask(self.flush)
        return bool(wanted)

    def take(
        self,
        model: str,
        rooms: Sequence[Room],
        message_ids: Sequence[str],
        published: dict[str, PublishedOutput],
    ) -> TakeReply | None:
        """Take jobs, and read what earlier attempts published of them."""

        def take(execution: Execution) -> TakeReply:
            reply = execution.take(model, rooms, message_ids)
            try:
                for claim in reply.claims:
                    if claim.attempt > 1:
                        published[claim.job_id] = execution.read_published(claim.job_id)
            except RedisError:
                execution.take_again()
                raise
            return reply

        return self.ask(take)


def _reduce(room: Room, claims: Sequence[Claim]) -> Room:
    """Return what is left of a room after claims, in the order in which they were taken."""
    sequences, size, guests = room.sequences, room.bytes, room.guests
    held = list(room.held)
    for claim in claims:
        if claim.level != room.level:
            continue
        if sequences > 0 and size > 0:
            sequences -= claim.sequences
            size -= claim.size
        else:
            guests -= 1
        held.append(claim.organization_id)
    return replace(room, sequences=sequences, bytes=size, guests=max(0, guests), held=held)
