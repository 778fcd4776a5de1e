"""Workers for test_life_cycle_model.py: they claim, publish, end and give back jobs, and die."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from completions.contract.job_request import decode_job_request
from completions.contract.usage import Usage
from completions.jobs.events import ChoiceEvent, EndState
from completions.jobs.execute import Claim, Ending, Execution, Output, Room, StepEvent, Verdict
from completions.jobs.new_job import Level
from completions.jobs.store import SyncStore
from completions.jobs.submit import FIRST_CHECK
from tests.completions.jobs.job_making import PREFIX
from tests.completions.jobs.life_cycle_model import Held, Model

WEBS = ["web-1", "web-2"]
MOST_HELD = 12

picks = st.integers(0, 9)
several = st.lists(picks, min_size=1, max_size=4)
slots = st.integers(0, 2)


class Workers(RuleBasedStateMachine):
    """Three workers, of which each is replaced when it dies."""

    client: ClassVar[redis.Redis]
    store: ClassVar[SyncStore]

    def __init__(self) -> None:
        super().__init__()
        self.client.flushdb()
        self.model = Model()
        self.names_of_workers = (f"worker-{n}" for n in count())
        self.workers = [self.new_worker() for _ in range(3)]
        self.held: list[Held] = []
        """Oldest first. Some are no longer the worker's."""
        self.begun: set[tuple[str, int]] = set()
        self.tokens = count(100)
        for slot in range(3):
            self.beat(slot)

    def chosen(self, found: Sequence[int]) -> list[str]:
        """The ids of different jobs; those that have not ended are chosen more often."""
        jobs = sorted(self.model.accepted, key=lambda job: not job.open)
        ids = [job.new.id for job in jobs] + ["nobody"]
        return list(dict.fromkeys(ids[pick % len(ids)] for pick in found))

    def new_worker(self) -> Execution:
        return Execution(self.store, next(self.names_of_workers))

    @rule(slot=slots, found=several, again=st.booleans(), size=st.integers(0, 2))
    def claim(self, slot: int, found: Sequence[int], again: bool, size: int) -> None:
        """`again` if the first reply was lost. Also a lapsed worker claims: it does not know."""
        worker, job_ids = self.workers[slot], self.chosen(found)
        self.take(worker, job_ids)
        if again:
            self.take(worker, job_ids)
        chosen = [it for it in self.held if it.worker == worker.worker_id]
        self.publish(worker, chosen, size, None, 0, again)

    def take(self, worker: Execution, job_ids: Sequence[str]) -> None:
        replies = worker.claim(job_ids)
        for job_id, reply in zip(job_ids, replies, strict=True):
            verdict = self.model.claim(worker.worker_id, job_id)
            if isinstance(reply, Claim):
                assert verdict == "run"
                self._begin(worker, reply)
            else:
                assert (reply.job_id, reply.reason) == (job_id, verdict)

    @rule(
        slot=slots,
        sequences=st.lists(st.integers(-1, 4), min_size=4, max_size=4),
        guests=st.integers(0, 2),
        again=st.booleans(),
    )
    def serve(self, slot: int, sequences: Sequence[int], guests: int, again: bool) -> None:
        """A worker takes the jobs whose turn it is. `again` if the first reply was lost."""
        worker = self.workers[slot]
        own = [job.new for job in self.model.open_jobs() if job.owner == worker.worker_id]
        rooms = [
            Room(
                level,
                left,
                10**6,
                guests,
                [str(j.organization_id) for j in own if j.level == level],
            )
            for level, left in zip(Level, sequences, strict=True)
        ]
        expected = self.model.take(worker.worker_id, rooms)
        for _ in range(1 + (again and bool(expected))):
            serial = worker._takes
            taken = worker.take("m", rooms)
            assert [claim.job_id for claim in taken.claims] == expected
            for claim in taken.claims:
                self._begin(worker, claim)
            worker._takes = serial
        worker._takes += 1

    def _begin(self, worker: Execution, claim: Claim) -> None:
        job = self.model.jobs[claim.job_id]
        assert (claim.attempt, claim.sequence_number) == (job.attempt, job.next_number)
        assert decode_job_request(claim.request) == job.new.request
        assert worker.read_published(claim.job_id).tokens.get(0, []) == job.tokens
        if (claim.job_id, claim.attempt) not in self.begun:
            self.begun.add((claim.job_id, claim.attempt))
            self.held.append(Held(worker.worker_id, claim, claim.sequence_number))
            del self.held[:-MOST_HELD]
            due: Any = self.client.zscore(f"{PREFIX}open", claim.job_id)
            assert due <= time.time() + FIRST_CHECK, "its worker's death would go unnoticed"

    @precondition(lambda self: self.held)
    @rule(
        pick=picks,
        many=st.booleans(),
        size=st.integers(0, 2),
        then=st.sampled_from(
            ["go on", "go on", "completed", "failed", "cancelled", "released", "lost", "regained"]
        ),
        ahead=st.sampled_from([0, 0, 1]),
        again=st.booleans(),
        joined=st.booleans(),
    )
    def step(
        self,
        pick: int,
        many: bool,
        size: int,
        then: Any,
        ahead: int,
        again: bool,
        joined: bool,
    ) -> None:
        """One or many claims of a worker. `again` if the reply was lost, `ahead` if Redis has lost
        the step before, `joined` if an end stores what its job gained last."""
        held = self.held[-1 - pick % len(self.held)]
        chosen = [it for it in self.held if many and it.worker == held.worker] or [held]
        (worker,) = (it for it in self.workers if it.worker_id == held.worker)
        if then in ("released", "lost", "regained"):
            self.publish(worker, chosen, size, None, ahead, again)
            for _ in range(1 + again):
                self.release(worker, chosen, then == "lost")
            if then == "regained":
                self.take(worker, [it.claim.job_id for it in chosen])
                self.publish(worker, chosen, size, "completed", 0, again)  # the former attempt
                self.release(worker, chosen, lost=True)
        else:
            end = None if then == "go on" else then
            self.publish(worker, chosen, size, end, ahead, again, joined)

    def publish(
        self,
        worker: Execution,
        chosen: Sequence[Held],
        size: int,
        end: Any,
        ahead: int,
        again: bool,
        joined: bool = False,
    ) -> None:
        steps, stepping, endings = [], [], []
        own = [it for it in self.held if it.worker == worker.worker_id and not it.is_left]
        is_complete = all(it in chosen for it in own)
        if end and ahead:
            size = 0  # only the end says that Redis has lost something
        for held in chosen:
            number = held.number + ahead
            choices = [ChoiceEvent(0, [next(self.tokens)], "x", None, None) for _ in range(size)]
            step = StepEvent(held.claim.job_id, held.claim.attempt, number, choices)
            before = [
                replace(it, sequence_number=it.sequence_number + ahead) for it in held.unstored
            ]
            gained = StepEvent.join([*before, *([step] if choices or not before else [])])
            last = gained if joined and gained.choices and not held.claim.reader else None
            if not end or last is None:
                steps.append(gained)
                stepping.append(held)
            held.unstored = []
            held.number += size
            if end:
                usage = Usage(2, held.number - 1)
                state: EndState = "completed" if ahead else end
                job_id, attempt = held.claim.job_id, held.claim.attempt
                endings.append(Ending(job_id, attempt, number + size, state, None, usage, last))
        for _ in range(1 + again):
            reply = worker.send(Output(steps, endings, is_complete=is_complete))
            self._expect(worker, stepping, is_complete, steps, reply.verdicts)
            for held, it, done in zip(chosen, endings, reply.written, strict=False):
                assert it.usage is not None
                assert done == self.model.finish(held, it)
        for held, verdict in zip(stepping, reply.verdicts, strict=True):
            held.is_left |= verdict is Verdict.NOT_YOURS
        for held in chosen:
            held.is_left |= bool(end)

    @precondition(lambda self: self.held)
    @rule(pick=picks, many=st.booleans(), size=st.integers(1, 2), again=st.booleans())
    def show(self, pick: int, many: bool, size: int, again: bool) -> None:
        """A worker shows what some of its streams gained. `again` if the reply was lost."""
        held = self.held[-1 - pick % len(self.held)]
        worker_id = held.worker
        own = [it for it in self.held if it.worker == worker_id and not it.is_left]
        chosen = [it for it in own if it.claim.reader and (many or it is held)]
        (worker,) = (it for it in self.workers if it.worker_id == worker_id)
        steps = []
        for held in chosen:
            choices = [ChoiceEvent(0, [next(self.tokens)], "x") for _ in range(size)]
            steps.append(StepEvent(held.claim.job_id, held.claim.attempt, held.number, choices))
        if not chosen:
            return
        shown = [(it.claim.reader, step) for it, step in zip(chosen, steps, strict=True)]
        said = [
            (it, step.sequence_number, [choice.token_ids[0] for choice in step.choices])
            for it, step in zip(chosen, steps, strict=True)
        ]
        for _ in range(1 + again):
            assert worker.send(Output(shown=shown)).showing == self.model.show(said, worker_id)
        for held, step in zip(chosen, steps, strict=True):
            held.unstored.append(step)
            held.number += size

    def _expect(
        self,
        worker: Execution,
        chosen: Sequence[Held],
        is_complete: bool,
        steps: Sequence[StepEvent],
        verdicts: Sequence[Verdict],
    ) -> None:
        self.model.lines.tick()  # one script publishes all steps
        for held, step, verdict in zip(chosen, steps, verdicts, strict=True):
            tokens = [token for choice in step.choices for token in choice.token_ids]
            assert verdict == self.model.publish(held, step.sequence_number, tokens)
        if steps:
            self.model.note_verdicts(worker.worker_id, verdicts, is_complete)

    def release(self, worker: Execution, chosen: Sequence[Held], lost: bool) -> None:
        worker.release([(it.claim.job_id, it.claim.attempt) for it in chosen], lost)
        self.model.release(chosen, lost)
        for it in chosen:
            it.is_left = True

    @rule(slot=slots, state=st.sampled_from(["beats", "lapsed", "dead"]))
    def heartbeat(self, slot: int, state: str) -> None:
        {"beats": self.beat, "lapsed": self.lapse, "dead": self.die}[state](slot)

    def beat(self, slot: int) -> None:
        worker_id = self.workers[slot].worker_id
        self.workers[slot].beat("m", {})
        self.client.persist(f"{PREFIX}worker:{worker_id}")  # ends when a rule says so, not by time
        self.model.beating.add(worker_id)
        self.keep_alive()

    def lapse(self, slot: int) -> None:
        """It does not reach Redis for longer than its heartbeat lasts, and may come back."""
        self.client.delete(f"{PREFIX}worker:{self.workers[slot].worker_id}")
        self.model.beating.discard(self.workers[slot].worker_id)

    @rule(slot=slots, found=several, workers=st.integers(1, 2))
    def claim_and_die(self, slot: int, found: Sequence[int], workers: int) -> None:
        """A process that is started again breaks again."""
        for _ in range(workers):
            self.take(self.workers[slot], self.chosen(found))
            self.die(slot)

    def die(self, slot: int) -> None:
        self.lapse(slot)
        gone = self.workers[slot].worker_id
        self.held = [held for held in self.held if held.worker != gone]
        self.workers[slot] = self.new_worker()
        self.beat(slot)

    def keep_alive(self) -> None:
        """Nothing expires because this machine is slow."""
        pipeline = self.client.pipeline(transaction=False)
        for name in (*(f"worker:{it}" for it in self.model.beating), *(f"web:{w}" for w in WEBS)):
            pipeline.persist(PREFIX + name)
        pipeline.execute()
