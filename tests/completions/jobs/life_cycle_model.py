"""The rules of the job life cycle in plain Python: the model beside test_life_cycle_model.py.

Every token is a choice of its own, so a job's next event has the number of its next token.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from completions.jobs.events import Usage
from completions.jobs.execute import MAX_LOSSES, Claim, Verdict
from completions.jobs.reconcile import FAILED_AFTER
from completions.jobs.record import NewJob

PLACES = 2
"""Calls and streams with limits that one API key may have at a time."""
MOST_OF_CLASS = MOST_OF_KEY = 4
BYTES_OF_KEY = 240
"""Four of the jobs without limits, three of those with limits."""
MONTHLY_TOKENS = 60
"""Budget of the API key whose jobs are limited."""


@dataclass
class ModelJob:
    new: NewJob
    web: str
    """The web process whose end cancels it, or empty."""
    limited: bool
    state: str = "queued"
    owner: str = ""
    attempt: int = 0
    losses: int = 0
    cancelling: bool = False
    late: float = -1000
    """Seconds past its deadline."""
    tokens: list[int] = field(default_factory=list)
    code: str | None = None
    usage: Usage | None = None

    @property
    def open(self) -> bool:
        return self.state in ("queued", "running")

    @property
    def next_number(self) -> int:
        return 1 + len(self.tokens)

    @property
    def used(self) -> int:
        return self.usage.prompt_tokens + self.usage.completion_tokens if self.usage else 0

    @property
    def cost(self) -> int:
        if not self.usage or not self.new.prices:
            return 0
        prompt, _, completion = self.new.prices
        return int(
            self.usage.prompt_tokens * prompt + self.usage.completion_tokens * completion
        )  # the model caches nothing

    @property
    def suspect(self) -> bool:
        return self.losses >= MAX_LOSSES - 1

    def give_back(self) -> None:
        self.state, self.owner = "queued", ""

    def end(self, state: str, code: str | None = None, usage: Usage | None = None) -> None:
        """Without usage, nobody but Redis knows what it generated."""
        assert self.open, "it ends once"
        if usage is None and self.tokens:
            usage = Usage(self.new.prompt_tokens, len(self.tokens))
        self.state, self.code, self.usage, self.owner = state, code, usage, ""


@dataclass
class Held:
    """A claim that a worker believes to be its own."""

    worker: str
    claim: Claim
    number: int
    """Of its next event."""


class Model:
    def __init__(self) -> None:
        self.jobs: dict[str, ModelJob] = {}
        """Without those that their clients deleted."""
        self.accepted: list[ModelJob] = []
        self.rids: set[str] = set()
        self.beating: set[str] = set()
        self.leases: set[str] = set()
        self.alone: dict[str, str] = {}
        """By worker: the suspect that it claimed last."""

    def open_jobs(self) -> list[ModelJob]:
        return [job for job in self.accepted if job.open]

    def refusal(self, new: NewJob, limited: bool) -> str:
        """Why a new job is refused; empty if it is not. Only budgets bound lines of batches."""
        others, waited_for = self.open_jobs(), new.waited_for
        mates = [job for job in others if job.new.api_key_id == new.api_key_id]
        held = sum(job.new.most_tokens for job in mates if job.limited)
        spent = held + self.spent_tokens(new.api_key_id) + new.most_tokens
        busy = sum(job.limited and job.new.waited_for for job in mates)
        size = new.size + sum(job.new.size for job in mates if job.new.kind != "batch")
        bounds = {
            "full": sum(class_of(job.new) == class_of(new) for job in others) >= MOST_OF_CLASS,
            "crowded": sum(job.new.kind != "batch" for job in mates) >= MOST_OF_KEY,
            "bytes": size > BYTES_OF_KEY,
            "budget": limited and spent > MONTHLY_TOKENS,
            "concurrency": limited and waited_for and busy >= PLACES,
        }
        if new.kind == "batch":
            bounds = {"budget": bounds["budget"]}
        return next((name for name, reached in bounds.items() if reached), "")

    def spent_tokens(self, api_key_id: int) -> int:
        return sum(job.used for job in self.accepted if job.new.api_key_id == api_key_id)

    def accept(self, job: ModelJob) -> None:
        self.jobs[job.new.id] = job
        self.accepted.append(job)
        if job.web:
            self.leases.add(job.web)

    def is_unwanted(self, job: ModelJob) -> bool:
        return job.cancelling or bool(job.web and job.web not in self.leases)

    def claim(self, worker: str, job_id: str) -> str:
        """Return `run`, or the reason for which the worker does not run the job."""
        job = self.jobs.get(job_id)
        if job is None:
            return "gone"
        if not job.open:
            return "done"
        if job.state == "running":
            if job.owner == worker:
                return "run"
            if job.owner in self.beating:
                return "elsewhere"
            job.losses += 1
            job.give_back()
        self._end_waiting(job)
        if not job.open:
            return "done"
        return self._start(worker, job)

    def _end_waiting(self, job: ModelJob) -> None:
        if job.losses >= MAX_LOSSES:
            job.end("failed", "worker_error")
        elif self.is_unwanted(job):
            job.end("cancelled")
        elif job.late >= 0:
            job.end("failed", "queue_timeout")

    def _start(self, worker: str, job: ModelJob) -> str:
        if job.suspect:
            other = self.jobs.get(self.alone.get(worker, ""))
            if other is not None and other is not job and other.owner == worker:
                return "elsewhere"
            self.alone[worker] = job.new.id
        job.state, job.owner = "running", worker
        job.attempt += 1
        return "run"

    def _own(self, held: Held) -> ModelJob | None:
        """The job of a claim that still holds."""
        job = self.jobs.get(held.claim.job_id)
        fence = "running", held.worker, held.claim.attempt
        return job if job and (job.state, job.owner, job.attempt) == fence else None

    def publish(self, held: Held, number: int, tokens: Iterable[int]) -> Verdict:
        job, tokens = self._own(held), list(tokens)
        if job is None:
            return Verdict.NOT_YOURS
        if tokens and number > job.next_number:
            job.give_back()
            return Verdict.NOT_YOURS
        if number == job.next_number:
            job.tokens += tokens
        return Verdict.CANCEL if self.is_unwanted(job) else Verdict.GO_ON

    def finish(self, held: Held, number: int, state: str, usage: Usage) -> bool:
        job = self._own(held)
        if job is None:
            return False
        if state == "completed" and number > job.next_number:
            job.give_back()
            return False
        job.end(state, usage=usage)
        return True

    def release(self, held: Held, lost: bool) -> None:
        job = self._own(held)
        if job is not None:
            job.give_back()
            job.losses += lost

    def cancel(self, job_id: str) -> str | None:
        job = self.jobs.get(job_id)
        found = job.state if job else None
        if job and found == "queued":
            job.end("cancelled")
        elif job and found == "running":
            job.cancelling = True
        return found

    def requeue(self, job_id: str) -> str | None:
        job = self.jobs.get(job_id)
        found = job.state if job else None
        if job and job.open:
            job.give_back()
        return found

    def reconcile(self, job_ids: Iterable[str]) -> set[str]:
        """The jobs, among these, whose messages are published again."""
        return {job_id for job_id in job_ids if self._look(self.jobs[job_id])}

    def _look(self, job: ModelJob) -> bool:
        waits = job.state == "queued" or job.owner not in self.beating
        if waits and job.late >= 0:
            job.end("failed", "queue_timeout")
        elif job.late >= FAILED_AFTER:
            job.end("failed", "generation_timeout")
        elif waits and self.is_unwanted(job):
            job.end("cancelled")
        return job.open and waits


def class_of(job: NewJob) -> str:
    return "interactive" if job.waited_for else job.kind


def byte_scopes(job: NewJob) -> list[str]:
    if job.kind == "batch":
        return [f"b{job.organization_id}", "batch", "all"]
    return [f"k{job.api_key_id}", f"o{job.organization_id}", class_of(job), "all"]
