"""A job that runs in this worker: what it has generated, how it ends, and its ids in log lines."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from completions.contract.usage import Usage
from completions.jobs.events import ChoiceEvent, JobError
from completions.jobs.execute import Claim, Ending, StepEvent
from completions.jobs.record import Kind
from workers.attempt_spans import AttemptSpan
from workers.engine.core.output import RequestOutput
from workers.engine.core.request import Audience, Request
from workers.event_encoding import convert_error, encode_choice, join_choices
from workers.metrics import RequestTimes

logger = logging.getLogger(__name__)

AUDIENCES: Final[Mapping[Kind, Audience]] = {
    "stream": Audience.TOKENS,
    "sync": Audience.ANSWER,
    "background": Audience.ANSWER,
    "batch": Audience.NOBODY,
}
"""Who waits for the output of a job. Few clients follow a background job token by token."""

STORED_TOKENS = 16
"""Tokens of a stream that may be shown before they are stored."""
UNWATCHED_INTERVAL = 1.0
"""Seconds between two times at which tokens are stored that no client sees before the job ends. An
attempt that takes over computes again what was not stored."""

Done = Callable[[], None]
"""Lets Celery acknowledge a message. Must not raise."""


@dataclass(slots=True)
class LiveJob:
    """A job between its claim and its end. Only the relay's thread uses it."""

    claim: Claim
    done: list[Done]
    """Called once its messages may be acknowledged."""
    prompt_tokens: int
    completion_tokens: int
    """Tokens of all attempts."""
    sequence_number: int
    """Number of the next event."""
    asked_at: float
    """When the worker last asked Redis whether to continue."""
    stepped_at: float
    """When it last gave tokens to publish."""
    pending_since: float
    """When the first tokens of `choices` were generated."""
    deadline: float
    times: RequestTimes
    span: AttemptSpan | None
    build: str | None = None
    """What computes it: see :mod:`workers.build_digest`."""
    choices: list[ChoiceEvent] = field(default_factory=list)
    """Output that is generated and not yet part of a batch to publish."""
    pending: int = 0
    """Tokens in `choices`."""
    unstored: list[StepEvent] = field(default_factory=list)
    """What left `choices` and is not part of the job's own stream yet."""
    unstored_tokens: int = 0
    has_stored: bool = False
    """Whether this attempt has stored anything: until then, it shows nothing that is not stored."""
    reader: str = ""
    """The web process that is shown each step, or empty."""
    request: Request | None = None
    """The request for the engine; None once the engine has taken it, or the job has ended."""
    ending: Ending | None = None

    def take(self, output: RequestOutput, now: float) -> None:
        """Add an output of the engine."""
        gained = sum(len(delta.token_ids) for delta in output.deltas)
        if not self.pending:
            self.pending_since = now
        self.choices += [encode_choice(delta, self.build) for delta in output.deltas]
        self.completion_tokens += gained
        self.pending += gained
        self.times.record_output(now, gained)
        if self.span is not None and gained:
            self.span.record_output(now - self.times.submitted_at)
        if output.error is not None:
            error = convert_error(output.error, self.completion_tokens)
            self.end("failed", error, output.usage, now)
        elif output.finished:
            self.end("completed", None, output.usage, now)

    def is_due(self, stream_interval: int, is_asked: bool, now: float) -> bool:
        """Return whether to publish now: at `stream_interval` tokens or where `is_asked` if a
        client may watch, and always its first tokens; else only where `is_asked` after an
        interval."""
        if not self.claim.can_be_followed:
            return is_asked and now - self.stepped_at >= UNWATCHED_INTERVAL
        return is_asked or self.sequence_number == 1 or stream_interval <= max(1, self.pending)

    def step(self, stream_interval: int, now: float) -> StepEvent:
        """Return what the job has gained since the last step, which is to be stored too."""
        each = self.claim.can_be_followed and stream_interval == 1
        choices = self.choices if each else join_choices(self.choices)
        age = now - self.pending_since if self.pending else 0.0
        step = StepEvent(self.claim.job_id, self.claim.attempt, self.sequence_number, choices, age)
        self.sequence_number += len(choices)
        self.unstored.append(step)
        self.unstored_tokens += self.pending
        self.choices, self.pending, self.stepped_at = [], 0, now
        return step

    def must_store(self, is_asked: bool) -> bool:
        """Return whether to store now what is unstored. `is_asked` says that all jobs are to store
        theirs."""
        if not self.unstored:
            return False
        is_due = is_asked or self.ending is not None or not (self.reader and self.has_stored)
        return is_due or self.unstored_tokens >= STORED_TOKENS

    def store(self) -> StepEvent:
        """Return what is unstored as one event, or a question only."""
        joined = StepEvent.join(
            self.unstored
            or [StepEvent(self.claim.job_id, self.claim.attempt, self.sequence_number, ())]
        )
        self.unstored, self.unstored_tokens, self.has_stored = [], 0, True
        return joined

    def end(self, state: Any, error: JobError | None, usage: Usage | None, now: float) -> None:
        """Set how the job ends; the next batch writes it after the job's last choices."""
        self.request = None
        self.ending = Ending(
            job_id=self.claim.job_id,
            attempt=self.claim.attempt,
            sequence_number=0,  # known once its last choices are published
            state=state,
            error=error,
            usage=usage or self._bill_published(),
        )
        self._report(error.code if error else state, error, now)

    def _bill_published(self) -> Usage | None:
        """Return what a job that the engine does not have used: nothing, unless an earlier attempt
        published tokens."""
        published = self.completion_tokens
        return Usage(self.prompt_tokens, published) if published else None

    def _report(self, outcome: str, error: JobError | None, now: float) -> None:
        self.times.record_end(now, outcome, self.prompt_tokens, self.completion_tokens)
        if self.span is not None:
            self.span.record_end(
                outcome, error is not None, self.prompt_tokens, self.completion_tokens
            )
        logger.log(
            logging.WARNING if error else logging.INFO,
            "job %s ends: %s",
            self.claim.job_id,
            f"{outcome}, {error.message}" if error else outcome,
            extra={
                **describe_claim(self.claim),
                "outcome": outcome,
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.completion_tokens,
                "seconds": round(now - self.times.submitted_at, 3),
            },
        )


def describe_claim(claim: Claim) -> dict[str, str]:
    """Return the `extra` of a log line about a job."""
    return {"job_id": claim.job_id, "request_id": claim.request_id}


class EngineLines(logging.Filter):
    """Adds the ids to lines of the engine, which have the job's id as `engine_request` in
    `extra`."""

    def __init__(self, find: Callable[[str], Claim | None]) -> None:
        super().__init__()
        self._find = find

    def filter(self, record: logging.LogRecord) -> bool:
        job_id = record.__dict__.pop("engine_request", None)
        if job_id is not None:
            claim = self._find(job_id)
            record.__dict__.update(describe_claim(claim) if claim else {"job_id": job_id})
        return True

    def install(self) -> None:
        """Add this filter to the handlers that write the lines."""
        for handler in logging.getLogger().handlers:
            handler.addFilter(self)
