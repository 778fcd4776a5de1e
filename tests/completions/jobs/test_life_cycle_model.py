"""Any order of submissions, claims, steps, losses and ends, against a real server and a model."""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import redis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from completions.jobs import operate
from completions.jobs.connection import connect_async
from completions.jobs.ended import delete_entries, read_ended
from completions.jobs.limits import (
    Bounds,
    Budget,
    BudgetReachedError,
    BytesFullError,
    KeyQueueFullError,
    LimitReachedError,
    Limits,
    QueueFullError,
)
from completions.jobs.new_job import NewJob
from completions.jobs.rids import Rids, RidTakenError
from completions.jobs.store import AsyncStore, JobStore
from completions.jobs.submit import Submission, submit_durable
from completions.maintenance.reconcile import correct_byte_sums, reconcile
from tests.completions.jobs.job_making import PREFIX, limited_job, new_job
from tests.completions.jobs.life_cycle_model import (
    BYTES_OF_KEY,
    MONTHLY_TOKENS,
    MOST_OF_CLASS,
    MOST_OF_KEY,
    PLACES,
    ModelJob,
)
from tests.completions.jobs.life_cycle_state import (
    ORGANIZATION,
    TOKENS_PER_MINUTE,
    Found,
    seed_budgets,
)
from tests.completions.jobs.life_cycle_workers import WEBS, Workers, picks, several

pytestmark = pytest.mark.integration

LIMITS = Limits(
    rates={"tokens": TOKENS_PER_MINUTE},
    max_concurrency=PLACES,
    budget=Budget(monthly_tokens=MONTHLY_TOKENS),
    organization_budget=Budget(monthly_cost=10**9),
)
PHASES = (Phase.generate,)
PRICES = (500.0, 100.0, 2000.0)
LIMITED_KEY, OTHER_KEY, STRANGERS_KEY = 8, 9, 10
STRANGERS = 11
MOST_JOBS = 10
specs = st.tuples(
    st.sampled_from(["sync", "stream", "background", "batch"]),
    st.sampled_from([LIMITED_KEY, LIMITED_KEY, OTHER_KEY, STRANGERS_KEY]),
    st.integers(0, 1),  # its web process
    st.sampled_from(["", "", "", "a", "b"]),  # the client's own id
    st.booleans(),  # whether it is sent twice
)
BOUNDS = Bounds(jobs_of_class=MOST_OF_CLASS, jobs_of_key=MOST_OF_KEY, bytes_of_key=BYTES_OF_KEY)
REFUSALS: dict[type[Exception], str] = {
    KeyQueueFullError: "crowded",
    BytesFullError: "bytes",
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
            self.lease(web, True)

    # Clients ---------------------------------------------------------------------------------

    @initialize(specs=st.lists(specs, min_size=3, max_size=6))
    def begin(self, specs: Sequence[Any]) -> None:
        for spec in specs:
            self._submit(*spec)

    @precondition(lambda self: len(self.model.accepted) < MOST_JOBS)
    @rule(spec=specs)
    def submit(self, spec: Any) -> None:
        self._submit(*spec)

    def _submit(self, kind: Any, key: int, web: int, rid: str, again: bool) -> None:
        """`again` if the first reply was lost."""
        limited = key == LIMITED_KEY
        job_id, fields = f"job-{len(self.model.accepted)}", {"seconds": 3600}
        if limited:
            more = {"prices": PRICES, "api_key_id": LIMITED_KEY}
            new = limited_job(job_id, LIMITS, kind, **more, **fields)
        else:
            organization = STRANGERS if key == STRANGERS_KEY else ORGANIZATION
            new = new_job(job_id, kind, api_key_id=key, organization_id=organization, **fields)
        if rid and not self._takes(rid, new):
            return
        refused = self.model.refusal(new, limited)
        assert self._refusal(new, web) == refused
        if not refused:
            reader = WEBS[web] if kind == "stream" else ""
            own_web = "" if new.is_durable else WEBS[web]
            self.model.accept(ModelJob(new, own_web, limited, reader))
            if again:
                assert self._refusal(new, web) == ""
            self.keep_alive()
        elif rid:
            self._run(self.rids.free(new.api_key_id, [rid], job_id))
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
            (reply,) = submit_durable(self.store, [new])
            return "" if isinstance(reply, bool) else REFUSALS[type(reply)]
        try:
            self._run(self.webs[web].submit(new, BOUNDS))
        except tuple(REFUSALS) as error:
            return REFUSALS[type(error)]
        return ""

    @rule(web=st.integers(0, 1), lives=st.booleans())
    def lease(self, web: int, lives: bool) -> None:
        if lives:
            self._run(self.webs[web].renew_lease())
            self.model.leases.add(WEBS[web])
            self.keep_alive()
        else:
            self._run(self.webs[web].drop_lease())
            self.model.leases.discard(WEBS[web])

    # Upkeep and operators --------------------------------------------------------------------

    @rule(pick=picks, action=st.sampled_from(["cancel", "requeue", "be late", "be late", "remove"]))
    def act(self, pick: int, action: str) -> None:
        (job_id,) = self.chosen([pick])
        job = self.model.jobs.get(job_id)
        if action == "cancel":
            assert operate.cancel(self.store, job_id) == self.model.cancel(job_id)
        elif action == "requeue":
            assert operate.requeue(self.store, job_id) == self.model.requeue(job_id)
        elif job and job.open and action == "be late":
            job.late = 61 if job.late > 0 else 1
            self.client.hset(f"{PREFIX}job:{job_id}", "deadline", time.time() - job.late)
        elif job and not job.open:  # as DELETE does with the result of a job that has ended
            self._run(self.webs[0].remove(job_id))
            del self.model.jobs[job_id]

    @rule(found=several, passes=st.integers(1, 6))
    def reconcile(self, found: Sequence[int], passes: int = 1) -> None:
        """Some time later, or many times."""
        for _ in range(passes):
            due = self._pass_time(self.chosen(found))
            messages = {lost.job_id for lost in reconcile(self.store)}
            assert messages == self.model.reconcile(due)

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

    @rule(scope=st.sampled_from(["k8", "o7", "all", "batch", "k99"]), wrong=st.integers(-900, 900))
    def correct(self, scope: str, wrong: int) -> None:
        """Whatever made a sum wrong."""
        assert correct_byte_sums(self.store) == 0
        self.client.hincrby(f"{PREFIX}bytes", scope, wrong)
        assert correct_byte_sums(self.store) <= 1

    @rule(most=st.integers(1, 3))
    def settle(self, most: int) -> None:
        jobs, _ = read_ended(self.store, most)
        delete_entries(self.store, jobs, 1000)
        delete_entries(self.store, jobs, 1000)
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
        for _ in range(MOST_JOBS):
            due = self._pass_time([job.new.id for job in self.model.accepted])
            messages = {lost.job_id for lost in reconcile(self.store)}
            assert messages == self.model.reconcile(due)
            self.take(last, sorted(messages))
            self.publish(last, self.held, 1, "completed", 0, False)
            self.held = []
        self.found.check()
        self.found.check_that_nothing_is_left()

    def _run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)


@pytest.mark.wide
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
        run_state_machine_as_test(machine, settings=settings(stateful_step_count=60, phases=PHASES))
    finally:
        loop.run_until_complete(client.aclose())
        loop.close()
