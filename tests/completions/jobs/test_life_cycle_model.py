"""Any order of submissions, claims, steps, losses and ends, against a real server and a model."""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from completions.jobs import operate
from completions.jobs.connection import connect_async
from completions.jobs.ended import forget, read_ended
from completions.jobs.limits import Budget, BudgetReachedError, LimitReachedError, Limits
from completions.jobs.reconcile import reconcile
from completions.jobs.record import NewJob
from completions.jobs.rids import Rids, RidTakenError
from completions.jobs.store import AsyncStore, JobStore
from completions.jobs.submit import KeyQueueFullError, QueueFullError, Submission, submit_kept
from tests.completions.jobs.job_making import PREFIX, limited_job, new_job
from tests.completions.jobs.life_cycle_model import (
    MONTHLY_TOKENS,
    MOST_OF_CLASS,
    MOST_OF_KEY,
    PLACES,
    ModelJob,
)
from tests.completions.jobs.life_cycle_state import TOKENS_PER_MINUTE, Found, seed_budgets
from tests.completions.jobs.life_cycle_workers import (
    MOST_HELD,
    NAMES,
    WEBS,
    Workers,
    names,
    several,
)

pytestmark = pytest.mark.integration

LIMITS = Limits(
    tokens_per_minute=TOKENS_PER_MINUTE,
    max_concurrency=PLACES,
    budget=Budget(monthly_tokens=MONTHLY_TOKENS),
    organization_budget=Budget(monthly_cost=10**9),
)
PRICES = (500.0, 100.0, 2000.0)
LIMITED_KEY, OTHER_KEY = 8, 9
REFUSALS: dict[type[Exception], str] = {
    KeyQueueFullError: "crowded",
    QueueFullError: "full",
    BudgetReachedError: "budget",
    LimitReachedError: "concurrency",
}


class LifeCycle(Workers):
    """Workers, two web processes, the reconciler and the settlement of ended jobs."""

    webs: ClassVar[Sequence[Submission]]
    rids: ClassVar[Rids]
    loop: ClassVar[asyncio.AbstractEventLoop]

    def __init__(self) -> None:
        super().__init__()
        seed_budgets(self.store, LIMITED_KEY)
        self.found = Found(self.client, self.store, self.model)
        for web in (0, 1):
            self.renew_lease(web)

    # Clients ---------------------------------------------------------------------------------

    @rule(
        name=names,
        kind=st.sampled_from(["sync", "stream", "background", "batch"]),
        limited=st.booleans(),
        web=st.integers(0, 1),
        rid=st.sampled_from(["", "", "a", "b"]),
    )
    def submit(self, name: str, kind: Any, limited: bool, web: int, rid: str) -> None:
        """A name that is taken stands for a submission whose first reply was lost."""
        fields = {"deadline": time.time() + 3600}
        if limited:
            new = limited_job(name, LIMITS, kind, prices=PRICES, api_key_id=LIMITED_KEY, **fields)
        else:
            new = new_job(name, kind, api_key_id=OTHER_KEY, **fields)
        if name in {job.new.id for job in self.model.accepted}:
            if name in self.model.jobs:
                assert self._refusal(new, web) == ""
            return
        if rid and not self._takes(rid, new):
            return
        refused = self.model.refusal(new, limited) if kind != "batch" else ""
        if kind == "batch" and limited and self.model.refusal(new, limited) == "budget":
            refused = "budget"
        assert self._refusal(new, web) == refused
        if not refused:
            self.model.accept(ModelJob(new, "" if new.kept else WEBS[web], limited))
            self.keep_alive()
        elif rid:
            self._run(self.rids.free(new.api_key_id, [rid], name))
            self.model.rids.discard(f"{new.api_key_id}:{rid}")

    def _takes(self, rid: str, new: NewJob) -> bool:
        used = f"{new.api_key_id}:{rid}"
        try:
            self._run(self.rids.take(new.api_key_id, [rid], new.id))
        except RidTakenError:
            assert used in self.model.rids
            return False
        assert used not in self.model.rids
        self.model.rids.add(used)
        return True

    def _refusal(self, new: NewJob, web: int) -> str:
        if new.kind == "batch":
            (reply,) = submit_kept(self.store, [new])
            return "" if isinstance(reply, bool) else REFUSALS[type(reply)]
        try:
            self._run(self.webs[web].submit(new, 100, MOST_OF_CLASS, MOST_OF_KEY))
        except tuple(REFUSALS) as error:
            return REFUSALS[type(error)]
        return ""

    @rule(name=names)
    def cancel(self, name: str) -> None:
        assert operate.cancel(self.store, name) == self.model.cancel(name)

    @rule(name=names)
    def remove(self, name: str) -> None:
        """As DELETE does with the result of a job that has ended."""
        job = self.model.jobs.get(name)
        if job is not None and not job.open:
            self._run(self.webs[0].remove(name))
            del self.model.jobs[name]

    @rule(web=st.integers(0, 1))
    def drop_lease(self, web: int) -> None:
        self._run(self.webs[web].drop_lease())
        self.model.leases.discard(WEBS[web])

    @rule(web=st.integers(0, 1))
    def renew_lease(self, web: int) -> None:
        self._run(self.webs[web].renew_lease())
        self.model.leases.add(WEBS[web])
        self.keep_alive()

    # Upkeep and operators --------------------------------------------------------------------

    @rule(name=names)
    def requeue(self, name: str) -> None:
        assert operate.requeue(self.store, name) == self.model.requeue(name)

    @rule(name=names, late=st.sampled_from([1.0, 61.0]))
    def pass_deadline(self, name: str, late: float) -> None:
        job = self.model.jobs.get(name)
        if job is not None and job.open:
            self.client.hset(f"{PREFIX}job:{name}", "deadline", time.time() - late)
            job.late = late

    @rule(job_ids=several, passes=st.integers(1, 6))
    def reconcile(self, job_ids: Sequence[str], passes: int = 1) -> None:
        """Some time later, or many times."""
        for _ in range(passes):
            due = self._pass_time(job_ids)
            found = {lost.job_id for lost in reconcile(self.store)}
            assert found == self.model.reconcile(due)

    def _pass_time(self, job_ids: Sequence[str]) -> list[str]:
        """Make the reconciler look at these jobs. Returns at which it looks, given-back ones too;
        the others are not due a moment later."""
        key, now = f"{PREFIX}open", time.time()
        for job in self.model.open_jobs():
            if job.new.id in job_ids:
                self.client.zadd(key, {job.new.id: 0})
        found: Any = self.client.zrange(key, 0, -1, withscores=True)
        for job_id, score in found:
            if score > now:
                self.client.zadd(key, {job_id: now + 10}, gt=True)
        return [job_id.decode() for job_id, score in found if score <= now]

    @rule(most=st.integers(1, 3))
    def settle(self, most: int) -> None:
        jobs, _ = read_ended(self.store, most)
        forget(self.store, jobs, 1000)
        forget(self.store, jobs, 1000)
        self.found.settled += [job.id for job in jobs]

    # What must hold --------------------------------------------------------------------------

    @invariant()
    def redis_agrees(self) -> None:
        self.found.check()

    def teardown(self) -> None:
        if sys.exc_info()[0] is None:
            self._end_all()

    def _end_all(self) -> None:
        """Every worker dies; one that gets only the reconciler's messages ends all."""
        for slot in range(3):
            self.lapse(slot)
        last = self.new_worker()
        self.workers[0] = last
        self.beat(0)
        self.held = []
        for _ in NAMES:
            due = self._pass_time(NAMES)
            messages = {lost.job_id for lost in reconcile(self.store)}
            assert messages == self.model.reconcile(due)
            self.take(last, sorted(messages))
            self.publish(0, range(MOST_HELD), 1, "completed", 0, False)
            self.held = []
        self.found.check()
        self.found.check_that_nothing_is_left()

    def _run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)


def test_any_order_of_events(valkey: Any, redis_client: redis.Redis) -> None:
    loop = asyncio.new_event_loop()
    client = connect_async(valkey.url)
    web_store: AsyncStore = JobStore(client, PREFIX)
    bound = {
        "client": redis_client,
        "store": JobStore(redis_client, PREFIX),
        "webs": [Submission(web_store, name) for name in WEBS],
        "rids": Rids(web_store),
        "loop": loop,
    }
    try:
        machine = type("Machine", (LifeCycle,), bound)
        run_state_machine_as_test(machine, settings=settings(stateful_step_count=50))
    finally:
        loop.run_until_complete(client.aclose())
        loop.close()
