"""The rules of the job life cycle in plain Python: the model beside test_life_cycle_model.py.

Every token is a choice of its own, so a job's next event has the number of its next token.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from completions.contract.usage import Usage
from completions.jobs.execute import (
    MAX_WORKER_FAILURES,
    Claim,
    Ending,
    Room,
    Showing,
    StepEvent,
    Verdict,
)
from completions.jobs.new_job import NewJob
from completions.maintenance.reconcile import FAILED_AFTER

PLACES = 2
"""Jobs with limits, lines of batches apart, that one API key may have at a time."""
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
    reader: str = ""
    """The web process that reads its stream."""
    state: str = "queued"
    owner: str = ""
    attempt: int = 0
    worker_failures: int = 0
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
        return self.worker_failures >= MAX_WORKER_FAILURES - 1

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
    unstored: list[StepEvent] = field(default_factory=list)
    """What was to be shown, and was not published."""
    is_left: bool = False
    """Whether the worker knows that it is not its own any more."""


class Lines:
    """Jobs in line: by level, organization, API key and age."""

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, int, int], set[str]] = {}
        self.turns: dict[tuple[int, ...], dict[int, float]] = {}
        """By level: organizations; by level and organization: keys. Each with the time since which
        it waits for its turn."""
        self._now = 0.0

    def tick(self) -> None:
        """A script begins. What it puts in line at the same time goes by name."""
        self._now += 1

    def enter(self, job: ModelJob, ticks: bool = True) -> None:
        if ticks:
            self.tick()
        level, organization, key = place = place_in_line(job.new)
        self.waiting.setdefault(place, set()).add(job.new.id)
        self.turns.setdefault((level, organization), {}).setdefault(key, self._now)
        self.turns.setdefault((level,), {}).setdefault(organization, self._now)

    def leave(self, job: ModelJob) -> None:
        place = place_in_line(job.new)
        if job.new.id in self.waiting.get(place, ()):
            self.waiting[place].remove(job.new.id)
            self._close(*place)

    def _close(self, level: int, organization: int, key: int) -> None:
        if self.waiting[level, organization, key]:
            return
        del self.waiting[level, organization, key]
        del self.turns[level, organization][key]
        if not self.turns[level, organization]:
            del self.turns[level, organization], self.turns[level,][organization]

    def organizations(self, level: int) -> list[int]:
        turns = self.turns.get((level,), {})
        return sorted(turns, key=lambda each: (turns[each], str(each)))

    def next(self, level: int, organization: int) -> str | None:
        keys = self.turns.get((level, organization))
        if not keys:
            return None
        self._now += 1e-6
        key = min(keys, key=lambda each: (keys[each], str(each)))
        job_id = min(self.waiting[level, organization, key])
        keys[key] = self.turns[level,][organization] = self._now
        self.waiting[level, organization, key].remove(job_id)
        self._close(level, organization, key)
        return job_id


class Model:
    def __init__(self) -> None:
        self.jobs: dict[str, ModelJob] = {}
        """Without those that their clients deleted."""
        self.accepted: list[ModelJob] = []
        self.rids: set[str] = set()
        self.beating: set[str] = set()
        self.leases: set[str] = set()
        self.lines = Lines()
        self.alone: dict[str, str] = {}
        """By worker: the suspect that it claimed last."""
        self.shown: list[tuple[Held, int, int]] = []
        """What is shown and may not be stored: by whom, its number and the token."""
        self.attention: set[str] = set()
        """Workers that show nothing before they have asked about all of their jobs."""

    def open_jobs(self) -> list[ModelJob]:
        return [job for job in self.accepted if job.open]

    def refusal(self, new: NewJob, limited: bool) -> str:
        """Why a new job is refused; empty if it is not. Only budgets bound lines of batches."""
        others = self.open_jobs()
        mates = [job for job in others if job.new.api_key_id == new.api_key_id]
        held = sum(job.new.max_total_tokens for job in mates if job.limited)
        spent = held + self.spent_tokens(new.api_key_id) + new.max_total_tokens
        busy = sum(job.limited and job.new.kind != "batch" for job in mates)
        size = new.size + sum(job.new.size for job in mates if job.new.kind != "batch")
        bounds = {
            "full": sum(class_of(job.new) == class_of(new) for job in others) >= MOST_OF_CLASS,
            "crowded": sum(job.new.kind != "batch" for job in mates) >= MOST_OF_KEY,
            "bytes": size > BYTES_OF_KEY,
            "budget": limited and spent > MONTHLY_TOKENS,
            "concurrency": limited and busy >= PLACES,
        }
        if new.kind == "batch":
            bounds = {"budget": bounds["budget"]}
        return next((name for name, reached in bounds.items() if reached), "")

    def spent_tokens(self, api_key_id: int) -> int:
        return sum(job.used for job in self.accepted if job.new.api_key_id == api_key_id)

    def accept(self, job: ModelJob) -> None:
        self.jobs[job.new.id] = job
        self.accepted.append(job)
        self.lines.enter(job)
        if job.web:
            self.leases.add(job.web)

    def is_unwanted(self, job: ModelJob) -> bool:
        return job.cancelling or bool(job.web and job.web not in self.leases)

    def take(self, worker: str, rooms: Iterable[Room]) -> list[str]:
        """The jobs that the worker claims, in order."""
        self.lines.tick()
        return [job_id for room in rooms for job_id in self._fill(worker, room)]

    def _fill(self, worker: str, room: Room) -> Iterator[str]:
        left, held = room.sequences, set(map(int, room.held))
        while left > 0 and (waiting := self.lines.organizations(room.level)):
            held.add(waiting[0])
            for job_id in self._serve(worker, room.level, waiting[0]):
                left -= self.jobs[job_id].new.sequences
                yield job_id
        guests = room.guests
        for organization in self.lines.organizations(room.level) if guests > 0 else ():
            if guests > 0 and organization not in held:
                for job_id in self._serve(worker, room.level, organization):
                    guests -= 1
                    yield job_id

    def _serve(self, worker: str, level: int, organization: int) -> Iterator[str]:
        """The next job of an organization that runs."""
        while job_id := self.lines.next(level, organization):
            if self.judge(worker, job_id) == "run":
                yield job_id
                return

    def claim(self, worker: str, job_id: str) -> str:
        """Return `run`, or the reason for which the worker does not run the job."""
        if job_id in self.jobs:
            self.lines.leave(self.jobs[job_id])
        return self.judge(worker, job_id)

    def judge(self, worker: str, job_id: str) -> str:
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
            self.take_from(job)
            job.worker_failures += 1
            job.state, job.owner = "queued", ""
        self._end_waiting(job)
        if not job.open:
            return "done"
        return self._start(worker, job)

    def _end_waiting(self, job: ModelJob) -> None:
        if job.worker_failures >= MAX_WORKER_FAILURES:
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

    def take_from(self, job: ModelJob) -> None:
        """Somebody takes the job from its worker, if it has one."""
        if job.owner:
            self.attention.add(job.owner)
            for held, number, token in self.shown:
                if self._own(held) is job and number == job.next_number:
                    job.tokens.append(token)

    def show(self, steps: Iterable[tuple[Held, int, Sequence[int]]], worker: str) -> Showing:
        if worker in self.attention:
            return Showing.REFUSED
        for held, number, tokens in steps:
            assert self._own(held) is not None, "it shows a job that was taken from it"
            self.shown += [(held, number + k, token) for k, token in enumerate(tokens)]
        return Showing.SHOWN

    def note_verdicts(self, worker: str, verdicts: Iterable[Verdict], is_complete: bool) -> None:
        if not {Verdict.CANCEL, Verdict.NOT_YOURS}.isdisjoint(verdicts):
            self.attention.add(worker)
        elif is_complete:
            self.attention.discard(worker)
            self.shown = [each for each in self.shown if each[0].worker != worker]

    def publish(self, held: Held, number: int, tokens: Iterable[int]) -> Verdict:
        job, tokens = self._own(held), list(tokens)
        if job is None:
            return Verdict.NOT_YOURS
        if tokens and number > job.next_number:
            self.give_back(job, ticks=False)
            return Verdict.NOT_YOURS
        if number == job.next_number:
            job.tokens += tokens
        if self.is_unwanted(job):
            return Verdict.CANCEL
        is_read = job.new.kind != "stream" or job.reader in self.leases
        return Verdict.GO_ON if is_read else Verdict.UNREAD

    def finish(self, held: Held, ending: Ending) -> bool:
        job, last = self._own(held), ending.last
        if job is None:
            return False
        if last is not None and last.sequence_number == job.next_number:
            job.tokens += [token for choice in last.choices for token in choice.token_ids]
        is_whole = ending.sequence_number <= job.next_number
        if not is_whole and (last is not None or ending.state == "completed"):
            self.give_back(job)
            return False
        job.end(ending.state, usage=ending.usage)
        return True

    def release(self, every: Iterable[Held], lost: bool) -> None:
        """One script gives all of them back, at the same time."""
        self.lines.tick()
        for held in every:
            job = self._own(held)
            if job is not None:
                self.give_back(job, ticks=False)
                job.worker_failures += lost

    def give_back(self, job: ModelJob, ticks: bool = True) -> None:
        self.take_from(job)
        job.state, job.owner = "queued", ""
        self.lines.enter(job, ticks)

    def cancel(self, job_id: str) -> str | None:
        job = self.jobs.get(job_id)
        found = job.state if job else None
        if job and found == "queued":
            self.lines.leave(job)
            job.end("cancelled")
        elif job and found == "running":
            job.cancelling = True
            self.attention.add(job.owner)
        return found

    def requeue(self, job_id: str) -> str | None:
        job = self.jobs.get(job_id)
        found = job.state if job else None
        if job and job.open:
            self.give_back(job)
        return found

    def reconcile(self, job_ids: Iterable[str]) -> set[str]:
        """The jobs, among these, whose messages are published again."""
        self.lines.tick()
        return {job_id for job_id in job_ids if self._look(self.jobs[job_id])}

    def _look(self, job: ModelJob) -> bool:
        waits = job.state == "queued" or job.owner not in self.beating
        if waits and job.late >= 0:
            self.take_from(job)
            job.end("failed", "queue_timeout")
        elif job.late >= FAILED_AFTER:
            self.take_from(job)
            job.end("failed", "generation_timeout")
        elif waits and self.is_unwanted(job):
            self.take_from(job)
            job.end("cancelled")
        if not job.open:
            self.lines.leave(job)
        elif waits:
            self.lines.enter(job, ticks=False)
        return job.open and waits


def class_of(job: NewJob) -> str:
    return "interactive" if job.is_interactive else job.kind


def place_in_line(job: NewJob) -> tuple[int, int, int]:
    return job.level, job.organization_id, job.api_key_id


def byte_scopes(job: NewJob) -> list[str]:
    if job.kind == "batch":
        return [f"b{job.organization_id}", "batch", "all"]
    return [f"k{job.api_key_id}", f"o{job.organization_id}", class_of(job), "all"]
