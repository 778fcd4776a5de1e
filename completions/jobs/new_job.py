"""A job on its way into the queue: what it reserves, and what Redis and SQL store of it."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final

import orjson
from msgspec import to_builtins

from completions.contract.adapters import read_name
from completions.contract.job_request import JobRequest, encode_job_request
from completions.jobs.limits import UNLIMITED, Limits
from completions.jobs.record import REDIS_NAMES, JobRecord, Kind

# Celery serves lower numbers first: clients that watch tokens arrive wait least.
PRIORITIES: Final[Mapping[Kind, int]] = {"stream": 0, "sync": 3, "background": 6, "batch": 9}


class Level(IntEnum):
    """The class of a job in the fair queue. Workers claim jobs of a lower number first."""

    URGENT = 0
    """Requests with a positive priority, which only some API keys may set."""
    LIVE = 1
    """Blocking requests and streams."""
    BACKGROUND = 2
    """Background jobs, and requests with a negative priority."""
    BATCH = 3


FLEX_PRIORITY = -1_000_000
"""Engine priority of lines and of flexible requests, where higher runs first: below every priority
that a client can set."""
SEVERAL_ADAPTERS = "*"
"""The adapter of a job whose prompts run with different ones."""
_NEUTRAL = {"n": 1, "top_p": 1, "repetition_penalty": 1, "top_k": -1}
"""Sampling values without effect. Values that are false have none either."""
_SHARED_FIELDS: Final = (
    *("id", "kind", "model", "organization_id", "api_key_id", "context", "ttl"),
    *("is_durable", "priority", "request_id", "adapter", "prompt_tokens"),
)
"""Fields that NewJob and JobRecord share."""


@dataclass(frozen=True, slots=True)
class ResponseInput:
    """What SQL stores of a response beside its job; see `StoredResponse`."""

    items: Sequence[Mapping[str, object]]
    previous_id: str = ""
    conversation_id: str | None = None
    last_item: int = 0
    """The primary key of the last item of the conversation that the prompt has, or 0."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A client's name for one request, so that sending it again does not run it again."""

    route: str
    key: str
    body_digest: str
    """Digest of the body that came with the key."""


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """What a job adds to a session."""

    session_id: str
    after_turn: str
    """The job that it comes after; empty for the session's beginning."""
    after_index: int
    """The choice of that job."""
    content: bytes
    """What was given, as `Job.turn` has it."""
    seconds: int
    """How long the session is kept from now on."""
    opens_for: str = ""
    """The model of the session, if the turn makes it; else empty."""
    on_drift: str = ""
    """The same setting of a session that the turn makes."""
    newest_turn: str | None = None
    """The turn that must be the session's newest until this one is stored, empty for none; None if
    any may be."""


@dataclass(frozen=True)  # without slots: it caches
class NewJob:
    """A validated job on its way into the queue.

    To add a field:

    1. Set it in `new_job` (`delivery/enqueueing.py`) and `make_job` (`batches/lines.py`).
    2. Write it in `record_fields`.
    3. Read it with a field of `JobRecord`, or name it in `SCRIPT_FIELDS` if scripts alone read it.
    4. If it must survive the loss of Redis, add a column of `Job` and name it in `_SHARED_FIELDS`
       (`jobs/durable.py`).
    """

    id: str
    kind: Kind
    model: str
    organization_id: int
    api_key_id: int
    request: JobRequest
    context: bytes
    """What responses are built from, in JSON: a `ResponseContext` of `completions/responses/`."""
    seconds: float
    """How long it may take to end; then it fails."""
    ttl: int
    """Seconds that an ended job can still be fetched."""
    head_start: float = 0.0
    """Seconds by which it goes before its turn, among the jobs of its API key."""
    limits: Limits = UNLIMITED
    """What its API key may use."""
    is_counted: bool = False
    """Whether its request counts toward the requests per minute already."""
    idempotency: IdempotencyKey | None = None
    request_id: str = ""
    """Id of the HTTP request that made it, or empty."""
    trace: str = ""
    """W3C headers of that request's span as JSON, or empty."""
    prices: Sequence[float] = ()
    """Prices of one prompt token, cached prompt token and completion token in billionths; empty if
    the model is free."""
    stored: bool = False
    """Whether its usage record keeps the request."""
    rids: Sequence[str] = ()
    """The client's own ids, which its API key may use once."""
    response_input: ResponseInput | None = None
    """What SQL stores beside it, if it is a stored response. SQL alone has it."""
    session_turn: SessionTurn | None = None
    """What it adds to a session."""

    @property
    def priority(self) -> int:
        """Celery's priority: by the sign of the request's own priority, else by its kind. The
        engine compares the requests' own priorities."""
        own = self.request.priority
        if own > 0:
            return PRIORITIES["stream"]
        if self.level == Level.BATCH:
            return PRIORITIES["batch"]
        of_kind = PRIORITIES[self.kind]
        return max(of_kind, PRIORITIES["background"]) if own else of_kind

    @property
    def level(self) -> Level:
        own = self.request.priority
        if self.kind == "batch" or own == FLEX_PRIORITY:
            return Level.BATCH
        if own > 0:
            return Level.URGENT
        return Level.LIVE if self.is_interactive and not own else Level.BACKGROUND

    @property
    def is_durable(self) -> bool:
        """Whether SQL stores it: it survives the loss of Redis and of its web process, and Redis
        keeps its result until SQL has it."""
        is_stored = self.response_input is not None or self.session_turn is not None
        return is_stored or self.idempotency is not None or not self.is_interactive

    @property
    def ends_with_client(self) -> bool:
        """Whether it is cancelled when its client hangs up."""
        is_awaited = self.idempotency is not None or self.session_turn is not None
        return self.is_interactive and not is_awaited

    @property
    def is_interactive(self) -> bool:
        """Whether a client waits on an open connection. Other jobs can wait for a worker."""
        return self.kind in ("sync", "stream")

    @property
    def prompt_tokens(self) -> int:
        return self.request.prompt_tokens

    @property
    def max_total_tokens(self) -> int:
        return self.request.max_total_tokens

    @property
    def max_cost(self) -> int:
        prompt, cached, completion = self.prices or (0, 0, 0)
        most_of_prompt = self.prompt_tokens * max(prompt, cached)
        return math.ceil(most_of_prompt + self.request.max_completion_tokens * completion)

    @property
    def sequences(self) -> int:
        return self.request.num_sequences

    @property
    def adapter(self) -> str:
        """The adapter of all prompts, empty for none."""
        names = {read_name(each) if each else "" for each in self.request.adapters or [None]}
        return SEVERAL_ADAPTERS if len(names) > 1 else names.pop()

    @cached_property
    def request_json(self) -> bytes:
        return encode_job_request(self.request)

    @property
    def size(self) -> int:
        """Bytes that it takes in Redis until its end."""
        return len(self.request_json) + len(self.context)

    def record_fields(self, web_id: str, reader: str = "") -> list[object]:
        """Return alternating names and values of the fields that `submit.lua` adds to its own.
        `web_id` is the web process whose end cancels the job, or empty; `reader` the one that reads
        its stream, or empty."""
        values: dict[str, object] = {
            "request": self.request_json,
            "context": self.context,
            "priority": self.priority,
            "ttl": self.ttl,
            "web": web_id,
            "is_durable": int(self.is_durable),
            "prompt_tokens": self.prompt_tokens,
            "request_id": self.request_id,
            "adapter": self.adapter,
            "parameters": orjson.dumps(summarize_parameters(self.request)),
        }
        if reader:
            values["reader"] = reader
        if self.prices:
            values["prices"] = orjson.dumps(list(self.prices))
        if self.head_start:
            values["head_start"] = self.head_start
        if self.stored:
            values["stored"] = 1
        if self.trace:
            values["trace"] = self.trace
        return [
            part for name, value in values.items() for part in (REDIS_NAMES.get(name, name), value)
        ]

    def make_record(self) -> JobRecord:
        """Return the record of the job once it is accepted."""
        shared = {name: getattr(self, name) for name in _SHARED_FIELDS}
        return JobRecord(
            state="queued",
            created=time.time(),
            parameters=summarize_parameters(self.request),
            seconds_left=self.seconds,
            **shared,
        )


def summarize_parameters(request: JobRequest) -> dict[str, object]:
    """Return a request's parameters for its usage record, without prompts, grammar and values that
    have no effect."""
    values = {
        "prompts": len(request.prompts),
        "constrained": request.grammar is not None,
        "priority": request.priority,
        "max_tokens": request.sampling.max_tokens,
        "temperature": request.sampling.temperature,
        **to_builtins(request.sampling, str_keys=True),
    }
    return {name: value for name, value in values.items() if value and value != _NEUTRAL.get(name)}
