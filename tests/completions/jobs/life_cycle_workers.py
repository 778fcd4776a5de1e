"""Workers for test_life_cycle_model.py: they claim, publish, end and give back jobs, and die."""

import time
from collections.abc import Sequence
from itertools import count
from typing import Any, ClassVar

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from completions.jobs.events import EndState, Usage
from completions.jobs.execute import Claim, Ending, Execution, NotClaimed, StepEvent, Verdict
from completions.jobs.store import SyncStore
from completions.jobs.submit import FIRST_CHECK
from tests.completions.jobs.job_making import PREFIX
from tests.completions.jobs.life_cycle_model import Held, Model

NAMES = [f"job-{n}" for n in range(7)]
WEBS = ["web-1", "web-2"]
MOST_HELD = 12

names = st.sampled_from(NAMES)
several = st.lists(names, min_size=1, max_size=4, unique=True)
slots = st.integers(0, 2)
places = st.lists(st.integers(0, MOST_HELD - 1), min_size=1, max_size=3, unique=True)


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
        """Newest first. Old ones are no longer the worker's."""
        self.tokens = count(100)
        for slot in range(3):
            self.beat(slot)

    def new_worker(self) -> Execution:
        return Execution(self.store, next(self.names_of_workers))

    @rule(slot=slots, job_ids=several, again=st.booleans())
    def claim(self, slot: int, job_ids: Sequence[str], again: bool = False) -> None:
        """`again` if the first reply was lost. Also a lapsed worker claims: it does not know."""
        worker = self.workers[slot]
        self.take(worker, job_ids)
        if again:
            self.take(worker, job_ids)

    def take(self, worker: Execution, job_ids: Sequence[str]) -> None:
        replies = worker.claim(job_ids)
        for job_id, reply in zip(job_ids, replies, strict=True):
            verdict = self.model.claim(worker.worker_id, job_id)
            if isinstance(reply, NotClaimed):
                assert reply == NotClaimed(job_id, verdict)  # type: ignore[arg-type]
            else:
                assert verdict == "run"
                self._begin(worker, reply)

    def _begin(self, worker: Execution, claim: Claim) -> None:
        job = self.model.jobs[claim.job_id]
        assert (claim.attempt, claim.sequence_number) == (job.attempt, job.next_number)
        assert claim.request == job.new.request
        assert worker.published(claim.job_id).tokens.get(0, []) == job.tokens
        due: Any = self.client.zscore(f"{PREFIX}open", claim.job_id)
        assert due <= time.time() + FIRST_CHECK, "its worker's death would go unnoticed"
        fence = worker.worker_id, claim.attempt, claim.job_id
        if fence not in [(it.worker, it.claim.attempt, it.claim.job_id) for it in self.held]:
            self.held.insert(0, Held(worker.worker_id, claim, claim.sequence_number))
            del self.held[MOST_HELD:]

    def _of(self, worker: str, places: Sequence[int]) -> list[Held]:
        own = [held for held in self.held if held.worker == worker]
        return [own[place] for place in places if place < len(own)]

    @precondition(lambda self: self.held)
    @rule(
        slot=slots,
        places=places,
        size=st.integers(0, 2),
        end=st.sampled_from([None, None, "completed", "failed", "cancelled"]),
        ahead=st.sampled_from([0, 0, 0, 0, 1]),
        again=st.booleans(),
    )
    def publish(
        self, slot: int, places: Sequence[int], size: int, end: Any, ahead: int, again: bool
    ) -> None:
        """One step; `again` if the reply was lost, `ahead` if Redis has lost the step before."""
        worker = self.workers[slot]
        chosen = self._of(worker.worker_id, places)
        steps, endings = [], []
        for held in chosen:
            number = held.number + ahead
            choices = [(0, [next(self.tokens)], "x", None, None) for _ in range(size)]
            steps.append(StepEvent(held.claim.job_id, held.claim.attempt, number, choices))
            held.number += size
            if end:
                usage = Usage(2, held.number - 1)
                state: EndState = "completed" if ahead else end
                job_id, attempt = held.claim.job_id, held.claim.attempt
                endings.append(Ending(job_id, attempt, number + size, state, None, usage))
        for _ in range(1 + again):
            verdicts, written = worker.publish(steps, endings)
            self._expect(chosen, steps, verdicts, endings, written)

    def _expect(
        self,
        chosen: Sequence[Held],
        steps: Sequence[StepEvent],
        verdicts: Sequence[Verdict],
        endings: Sequence[Ending],
        written: Sequence[bool],
    ) -> None:
        for held, step, verdict in zip(chosen, steps, verdicts, strict=True):
            tokens = [token for choice in step.choices for token in choice[1]]
            assert verdict == self.model.publish(held, step.sequence_number, tokens)
        for held, it, done in zip(chosen, endings, written, strict=False):
            assert it.usage is not None
            assert done == self.model.finish(held, it.sequence_number, it.state, it.usage)

    @precondition(lambda self: self.held)
    @rule(slot=slots, places=places, lost=st.booleans(), again=st.booleans())
    def release(self, slot: int, places: Sequence[int], lost: bool, again: bool) -> None:
        worker = self.workers[slot]
        chosen = self._of(worker.worker_id, places)
        for _ in range(1 + again):
            worker.release([(it.claim.job_id, it.claim.attempt) for it in chosen], lost)
            for held in chosen:
                self.model.release(held, lost)

    @rule(slot=slots)
    def beat(self, slot: int) -> None:
        self.workers[slot].beat("m", {})
        self.model.beating.add(self.workers[slot].worker_id)
        self.keep_alive()

    @rule(slot=slots)
    def lapse(self, slot: int) -> None:
        """It does not reach Redis for longer than its heartbeat lasts, and may come back."""
        self.client.delete(f"{PREFIX}worker:{self.workers[slot].worker_id}")
        self.model.beating.discard(self.workers[slot].worker_id)

    @rule(slot=slots, job_ids=several)
    def claim_and_die(self, slot: int, job_ids: Sequence[str]) -> None:
        self.take(self.workers[slot], job_ids)
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
