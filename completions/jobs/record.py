"""The record of a job in Redis: its states and fields, how they are written and read, and the names
of all Redis keys.

The scripts in ``lua/`` use the same keys and fields; a test holds them to this module.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final, Literal, Self, get_args

import orjson

from completions.jobs.events import EndEvent, EndState, Event, JobError, Usage
from completions.jobs.limits import UNLIMITED, Limits

Kind = Literal["sync", "stream", "background", "batch"]
"""A call, a stream, a background job, a line of a batch."""
State = Literal["queued", "running"] | EndState
ENDED: Final[frozenset[str]] = frozenset(get_args(EndState))

# Celery serves lower numbers first: clients that watch tokens arrive wait least.
PRIORITIES: Final[Mapping[Kind, int]] = {"stream": 0, "sync": 3, "background": 6, "batch": 9}

SEVERAL_ADAPTERS = "*"
"""The adapter of a job whose prompts run with different ones."""
_NEUTRAL = {"n": 1, "top_p": 1, "repetition_penalty": 1, "top_k": -1}
"""Sampling values without effect. Values that are false have none either."""


# Keys --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of the Redis keys of one installation; ARCHITECTURE.md says what each holds.

    Scripts build them from the prefix, so Redis Cluster is not supported.
    """

    prefix: str

    @property
    def open(self) -> str:
        return f"{self.prefix}open"

    @property
    def usage(self) -> str:
        return f"{self.prefix}usage"

    @property
    def workers(self) -> str:
        return f"{self.prefix}workers"

    @property
    def used(self) -> str:
        return f"{self.prefix}used"

    @property
    def keys(self) -> str:
        return f"{self.prefix}keys"

    def job(self, job_id: str) -> str:
        return f"{self.prefix}job:{job_id}"

    def ev(self, job_id: str) -> str:
        return f"{self.prefix}ev:{job_id}"

    def web(self, web_id: str) -> str:
        return f"{self.prefix}web:{web_id}"

    def ctl(self, web_id: str) -> str:
        return f"{self.prefix}ctl:{web_id}"

    def worker(self, worker_id: str) -> str:
        return f"{self.prefix}worker:{worker_id}"

    def drain(self, worker_id: str) -> str:
        return f"{self.prefix}drain:{worker_id}"

    def metrics(self, worker_id: str) -> str:
        return f"{self.prefix}metrics:{worker_id}"

    def rid(self, api_key_id: int, rid: str) -> str:
        return f"{self.prefix}rid:{api_key_id}:{rid}"

    def lock(self, name: str) -> str:
        return f"{self.prefix}lock:{name}"

    def login(self, kind: str, digest: str) -> str:
        return f"{self.prefix}login:{kind}:{digest}"

    def queue(self, name: str) -> str:
        """A list of Celery's broker."""
        return f"{self.prefix}{name}"


SCRIPT_KEYS: Final = ("served", "suspect", "depth", "queued", "spent", "limits", "busy")
"""Keys, up to their first colon, that only the scripts name."""


# Jobs on their way in ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A client's name for one request, so that sending it again does not run it again."""

    route: str
    key: str
    body_digest: str
    """Digest of the body that came with the key."""


@dataclass(frozen=True)  # without slots: it caches
class NewJob:
    """A validated job on its way into the queue."""

    id: str
    kind: Kind
    model: str
    organization_id: int
    api_key_id: int
    request: Mapping[str, Any]
    """What the worker reads: prompts, sampling, grammar."""
    view: Mapping[str, Any]
    """What responses are built from."""
    deadline: float
    """Unix time at which the job fails if it has not ended."""
    ttl: int
    """Seconds that an ended job can still be fetched."""
    limits: Limits = UNLIMITED
    """What its API key may use."""
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

    @property
    def priority(self) -> int:
        """Celery's priority: the request's own, if any, then its kind's. The engine compares
        requests' own."""
        own = self.request.get("priority", 0)
        if own > 0:
            return PRIORITIES["stream"]
        of_kind = PRIORITIES[self.kind]
        return max(of_kind, PRIORITIES["background"]) if own else of_kind

    @property
    def kept(self) -> bool:
        """Whether SQL stores it: it survives Redis and its web process, and Redis keeps its result
        until SQL has it."""
        return self.idempotency is not None or not self.waited_for

    @property
    def waited_for(self) -> bool:
        """Whether a client is on the line. Other jobs can wait for a worker."""
        return self.kind in ("sync", "stream")

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.request.get("prompts", ())))

    @property
    def most_tokens(self) -> int:
        """Tokens that it can use: every prompt once, every choice at its longest."""
        return self.prompt_tokens + self._most_completion_tokens

    @property
    def most_cost(self) -> int:
        """What `most_tokens` can cost, in billionths."""
        if not self.prices:
            return 0
        prompt = self.prompt_tokens * max(self.prices[:2])
        return math.ceil(prompt + self._most_completion_tokens * self.prices[2])

    @property
    def _most_completion_tokens(self) -> int:
        sampling = self.request.get("sampling", {})
        choices = sampling.get("best_of") or sampling.get("n", 1)
        return int(choices * sampling.get("max_tokens", 0)) * len(self.request.get("prompts", ()))

    @property
    def adapter(self) -> str:
        """The adapter of all prompts, empty for none."""
        names = set(self.request.get("adapters") or [None])
        return SEVERAL_ADAPTERS if len(names) > 1 else (names.pop() or "")

    @cached_property
    def request_json(self) -> bytes:
        return orjson.dumps(self.request)

    @cached_property
    def view_json(self) -> bytes:
        return orjson.dumps(self.view)

    def record_fields(self, web_id: str) -> list[Any]:
        """Fields and values, in turn, that `submit.lua` writes beside its own. `web_id` is the web
        process whose end cancels the job, or empty."""
        values: dict[str, Any] = {
            "request": self.request_json,
            "view": self.view_json,
            "priority": self.priority,
            "ttl": self.ttl,
            "web": web_id,
            "kept": int(self.kept),
            "prompt_tokens": self.prompt_tokens,
            "request_id": self.request_id,
            "adapter": self.adapter,
            "parameters": orjson.dumps(parameters_of(self.request)),
        }
        if self.prices:
            values["prices"] = orjson.dumps(list(self.prices))
        if self.stored:
            values["stored"] = 1
        if self.trace:
            values["trace"] = self.trace
        return [part for pair in values.items() for part in pair]


def parameters_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request's parameters for its usage record, without prompts, grammar and values that have no
    effect."""
    values = {
        "prompts": len(request.get("prompts", ())),
        "constrained": request.get("grammar") is not None,
        "priority": request.get("priority"),
        **request.get("sampling", {}),
    }
    return {name: value for name, value in values.items() if value and value != _NEUTRAL.get(name)}


# Jobs that Redis knows ---------------------------------------------------------------------------


def stored(name: str, read: Callable[[bytes], Any]) -> Mapping[str, Any]:
    """Metadata of a dataclass field: the field of the hash that it comes from, and its decoder."""
    return {"name": name.encode(), "read": read}


def _error(raw: bytes) -> JobError:
    return JobError(**orjson.loads(raw))


def _usage(raw: bytes) -> Usage:
    return Usage(**orjson.loads(raw))


def _is_one(raw: bytes) -> bool:
    return raw == b"1"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as its hash in Redis has it, or SQL once Redis has not.

    Times are Unix seconds. Fields with a default are absent from some jobs, and from records of
    which only a part was read.
    """

    id: str
    kind: Kind = field(metadata=stored("kind", bytes.decode))
    state: State = field(metadata=stored("state", bytes.decode))
    model: str = field(metadata=stored("model", bytes.decode))
    organization_id: int = field(metadata=stored("organization", int))
    api_key_id: int = field(metadata=stored("key", int))
    created: float = field(metadata=stored("created", float))

    request: bytes = field(default=b"", metadata=stored("request", bytes))
    """What the worker reads, in JSON; deleted at the end."""
    view: Mapping[str, Any] = field(default_factory=dict, metadata=stored("view", orjson.loads))
    """What responses are built from."""
    deadline: float = field(default=0.0, metadata=stored("deadline", float))
    ttl: int = field(default=0, metadata=stored("ttl", int))
    """Seconds that the job can be fetched after its end."""
    priority: int = field(default=0, metadata=stored("priority", int))
    kept: bool = field(default=False, metadata=stored("kept", _is_one))
    """Whether SQL stores it too; then it expires only once SQL has its result."""
    request_id: str = field(default="", metadata=stored("request_id", bytes.decode))
    """Id of the HTTP request that made it."""
    adapter: str = field(default="", metadata=stored("adapter", bytes.decode))
    parameters: Mapping[str, Any] = field(
        default_factory=dict, metadata=stored("parameters", orjson.loads)
    )
    """See `parameters_of`."""
    prompt_tokens: int = field(default=0, metadata=stored("prompt_tokens", int))

    attempt: int = field(default=0, metadata=stored("attempt", int))
    """How many workers have claimed it."""
    losses: int = field(default=0, metadata=stored("losses", int))
    """How many of them were lost."""
    owner: str = field(default="", metadata=stored("owner", bytes.decode))
    """The worker that runs it."""
    last_owner: str = field(default="", metadata=stored("worker", bytes.decode))
    """The worker that ran it, once it has ended."""
    started: float | None = field(default=None, metadata=stored("started", float))
    """When it was first claimed."""
    first: float | None = field(default=None, metadata=stored("first", float))
    """When its first token was published."""
    generated: int = field(default=0, metadata=stored("generated", int))
    """Tokens published so far."""
    sequence_number: int = field(default=1, metadata=stored("seq", int))
    """Number of the next event."""
    cancelling: bool = field(default=False, metadata=stored("cancel", _is_one))
    """Whether its worker is to stop it."""

    finished: float | None = field(default=None, metadata=stored("finished", float))
    error: JobError | None = field(default=None, metadata=stored("error", _error))
    usage: Usage | None = field(default=None, metadata=stored("usage", _usage))
    events: Sequence[Event] | None = None
    """All events, where they come from SQL."""

    @classmethod
    def read(cls, job_id: str, raw: Mapping[bytes, bytes | None], **more: Any) -> Self:
        """Decode the fields of a hash, or of an entry of the usage stream, which has the same.

        Raises TypeError or ValueError for a record that is not a job's.
        """
        found = {
            each.name: each.metadata["read"](value)
            for each in fields(cls)
            if each.metadata and (value := raw.get(each.metadata["name"]))
        }
        return cls(id=job_id, **found, **more)

    @classmethod
    def queued(cls, job: NewJob) -> "JobRecord":
        """The record of a job that was just accepted."""
        return cls(
            id=job.id,
            kind=job.kind,
            state="queued",
            model=job.model,
            organization_id=job.organization_id,
            api_key_id=job.api_key_id,
            created=time.time(),
            view=job.view,
            deadline=job.deadline,
            ttl=job.ttl,
            kept=job.kept,
        )

    def ended_as(self, end: EndEvent, finished: float, events: Sequence[Event]) -> "JobRecord":
        """The same job after its end."""
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
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def worker(self) -> str:
        """The worker that runs it or ran it last."""
        return self.owner or self.last_owner


SCRIPT_FIELDS: Final[Mapping[str, str]] = {
    "web": "The web process whose end cancels the job, or empty.",
    "prices": "See NewJob, in JSON.",
    "stored": "1 if the usage record keeps the request.",
    "trace": "See NewJob.",
    "reserved": "Tokens taken from the API key's bucket, if it has one.",
    "held": "What the job holds of budgets, in JSON: scopes, tokens, cost.",
    "republished": "How often the message was published again since the last claim.",
}
"""Fields of the hash that only scripts read."""
RECORD_FIELDS: Final = tuple(
    each.metadata["name"].decode() for each in fields(JobRecord) if each.metadata
)
"""Fields of the hash that JobRecord has."""
