"""The record of a job in Redis: its states and fields, and how they are written and read.

The scripts in ``lua/`` use the same fields; a test compares them with this module.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, Literal, Self, get_args

import orjson
from msgspec import to_builtins

from completions.contract.job_request import JobRequest, encode_job_request
from completions.contract.usage import Usage
from completions.jobs.events import EndEvent, EndState, Event, JobError
from completions.jobs.limits import UNLIMITED, Limits

Kind = Literal["sync", "stream", "background", "batch"]
"""A blocking request, a stream, a background job, a line of a batch."""
State = Literal["queued", "running"] | EndState
ENDED: Final[frozenset[str]] = frozenset(get_args(EndState))

Canceller = Literal["client", "hang-up", "operator", "batch", "web"]
"""Who cancels a job: a call of the API, a client that closes its connection, a user of the admin,
its batch, or the end of the web process that its client waits at."""

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


SEVERAL_ADAPTERS = "*"
"""The adapter of a job whose prompts run with different ones."""
_NEUTRAL = {"n": 1, "top_p": 1, "repetition_penalty": 1, "top_k": -1}
"""Sampling values without effect. Values that are false have none either."""


# Jobs on their way in ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResponseInput:
    """What SQL stores of a response beside its job; see `StoredResponse`."""

    items: Sequence[Mapping[str, Any]]
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
        of_kind = PRIORITIES[self.kind]
        return max(of_kind, PRIORITIES["background"]) if own else of_kind

    @property
    def level(self) -> Level:
        own = self.request.priority
        if self.kind == "batch":
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
        names = set(self.request.adapters or [None])
        return SEVERAL_ADAPTERS if len(names) > 1 else (names.pop() or "")

    @cached_property
    def request_json(self) -> bytes:
        return encode_job_request(self.request)

    @property
    def size(self) -> int:
        """Bytes that it takes in Redis until its end."""
        return len(self.request_json) + len(self.context)

    def record_fields(self, web_id: str) -> list[object]:
        """Return alternating names and values of the fields that `submit.lua` adds to its own.
        `web_id` is the web process whose end cancels the job, or empty."""
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
        if self.prices:
            values["prices"] = orjson.dumps(list(self.prices))
        if self.stored:
            values["stored"] = 1
        if self.trace:
            values["trace"] = self.trace
        return [part for name, value in values.items() for part in (redis_name(name), value)]


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


# Jobs that Redis knows ---------------------------------------------------------------------------


REDIS_NAMES: Final[Mapping[str, str]] = {
    "organization_id": "organization",
    "api_key_id": "key",
    "context": "view",
    "is_durable": "kept",
    "worker_failures": "losses",
    "last_owner": "worker",
    "sequence_number": "seq",
    "cancelling": "cancel",
}
"""Fields that Redis has under the names of version 0.1.0: during an upgrade, web processes and
workers of both versions read and write the same records. Scripts name them `REDIS.<our name>`."""


def redis_name(name: str) -> str:
    """Return the name in Redis of a field of a record."""
    return REDIS_NAMES.get(name, name)


def hash_field(decode: Callable[[bytes], Any]) -> Mapping[str, object]:
    """Return the metadata of a dataclass field that is read from a record in Redis."""
    return {"decode": decode}


def _is_one(raw: bytes) -> bool:
    return raw == b"1"


_SHARED_FIELDS: Final = (
    *("id", "kind", "model", "organization_id", "api_key_id", "context", "ttl"),
    *("is_durable", "priority", "request_id", "adapter", "prompt_tokens"),
)
"""Fields that NewJob and JobRecord share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as stored in its Redis hash, or in SQL once Redis has dropped it.

    Times are Unix seconds. Fields with a default are absent from some jobs, and from records
    that were read in part.
    """

    id: str
    kind: Kind = field(metadata=hash_field(bytes.decode))
    state: State = field(metadata=hash_field(bytes.decode))
    model: str = field(metadata=hash_field(bytes.decode))
    organization_id: int = field(metadata=hash_field(int))
    api_key_id: int = field(metadata=hash_field(int))
    created: float = field(metadata=hash_field(float))

    request: bytes = field(default=b"", metadata=hash_field(bytes))
    """What the worker reads, in JSON; deleted at the end."""
    context: bytes = field(default=b"", metadata=hash_field(bytes))
    """What responses are built from, in JSON."""
    deadline: float = field(default=0.0, metadata=hash_field(float))
    """On Redis's clock, and so of no use where that is not read too."""
    seconds_left: float = 0.0
    """Until its deadline, when the record was made."""
    ttl: int = field(default=0, metadata=hash_field(int))
    """Seconds that the job can be fetched after its end."""
    priority: int = field(default=0, metadata=hash_field(int))
    is_durable: bool = field(default=False, metadata=hash_field(_is_one))
    """Whether SQL stores it too; then it expires only once SQL has its result."""
    request_id: str = field(default="", metadata=hash_field(bytes.decode))
    """Id of the HTTP request that made it."""
    adapter: str = field(default="", metadata=hash_field(bytes.decode))
    parameters: Mapping[str, object] = field(
        default_factory=dict, metadata=hash_field(orjson.loads)
    )
    """See `summarize_parameters`."""
    prompt_tokens: int = field(default=0, metadata=hash_field(int))

    attempt: int = field(default=0, metadata=hash_field(int))
    """How many workers have claimed it."""
    worker_failures: int = field(default=0, metadata=hash_field(int))
    """How many of them were lost."""
    owner: str = field(default="", metadata=hash_field(bytes.decode))
    """The worker that runs it."""
    last_owner: str = field(default="", metadata=hash_field(bytes.decode))
    """The worker that ran it, once it has ended."""
    started: float | None = field(default=None, metadata=hash_field(float))
    """When it was first claimed."""
    first: float | None = field(default=None, metadata=hash_field(float))
    """When its first token was published."""
    generated: int = field(default=0, metadata=hash_field(int))
    """Tokens published so far."""
    sequence_number: int = field(default=1, metadata=hash_field(int))
    """Number of the next event."""
    cancelled_by: str = field(default="", metadata=hash_field(bytes.decode))
    """One of `Canceller`, if it was cancelled."""
    cancelling: bool = field(default=False, metadata=hash_field(_is_one))
    """Whether its worker must stop it."""

    finished: float | None = field(default=None, metadata=hash_field(float))
    error: JobError | None = field(
        default=None, metadata=hash_field(lambda raw: JobError(**orjson.loads(raw)))
    )
    usage: Usage | None = field(
        default=None, metadata=hash_field(lambda raw: Usage.read(orjson.loads(raw)))
    )
    events: Sequence[Event] | None = None
    """All events, if the job was read from SQL."""

    @classmethod
    def read(cls, job_id: str, raw: Mapping[bytes, bytes | None], **more: Any) -> Self:
        """Decode the fields of a hash, or the same fields of an entry of the usage stream.

        Raises TypeError or ValueError for a record that is not a job's.
        """
        values = {
            each.name: each.metadata["decode"](value)
            for each in fields(cls)
            if each.metadata and (value := raw.get(redis_name(each.name).encode()))
        }
        return cls(id=job_id, **values, **more)

    @classmethod
    def from_new(cls, job: NewJob) -> "JobRecord":
        """Return the record of a job that was just accepted."""
        shared = {name: getattr(job, name) for name in _SHARED_FIELDS}
        parameters = summarize_parameters(job.request)
        return cls(
            state="queued",
            created=time.time(),
            parameters=parameters,
            seconds_left=job.seconds,
            **shared,
        )

    def with_end(self, end: EndEvent, finished: float, events: Sequence[Event]) -> "JobRecord":
        """Return the same job after its end."""
        return replace(
            self,
            state=end.state,
            finished=finished,
            error=end.error,
            usage=end.usage,
            sequence_number=end.sequence_number,
            events=events,
        )

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def worker(self) -> str:
        """The worker that runs it or ran it last."""
        return self.owner or self.last_owner


SCRIPT_FIELDS: Final[Mapping[str, str]] = {
    "web": "The web process whose end cancels the job, or empty.",
    "prices": "NewJob.prices as JSON.",
    "stored": "1 if the usage record keeps the request.",
    "trace": "NewJob.trace.",
    "bytes": "NewJob.size; absent from jobs of versions that did not count them.",
    "level": "NewJob.level; absent from jobs of versions without levels, outside the fair queue.",
    "sequences": "NewJob.sequences.",
    "reserved": "Tokens taken from the API key's bucket, if it has one.",
    "held": "What the job reserves from budgets, as JSON: scopes, tokens, cost.",
    "republished": "How often the message was published again since the last claim.",
}
"""Fields of the hash that only scripts read."""
RECORD_FIELDS: Final = tuple(each.name for each in fields(JobRecord) if each.metadata)
"""Fields of JobRecord that the hash has, under their names in Redis."""
