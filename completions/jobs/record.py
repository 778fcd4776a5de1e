"""The record of a job in Redis: its states and fields, and how they are read.

The scripts in ``lua/`` use the same fields; a test compares them with this module.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Final, Literal, Self, get_args

import orjson
from msgspec import MsgspecError, json

from completions.contract.usage import Usage
from completions.jobs.events import EndEvent, EndState, Event, JobError

Kind = Literal["sync", "stream", "background", "batch"]
"""A blocking request, a stream, a background job, a line of a batch."""
State = Literal["queued", "running"] | EndState
ENDED: Final[frozenset[str]] = frozenset(get_args(EndState))

Canceller = Literal["client", "hang-up", "operator", "batch", "web"]
"""Who cancels a job: a call of the API, a client that closes its connection, a user of the admin,
its batch, or the end of the web process that its client waits at."""

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


def hash_field(decode: Callable[[bytes], object]) -> Mapping[str, object]:
    """Return the metadata of a dataclass field that is read from a record in Redis."""
    return {"decode": decode}


def _is_one(raw: bytes) -> bool:
    return raw == b"1"


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
    usage: Usage | None = field(default=None, metadata=hash_field(json.Decoder(Usage).decode))
    events: Sequence[Event] | None = None
    """All events, if the job was read from SQL."""

    @classmethod
    def read(cls, job_id: str, raw: Mapping[bytes, bytes | None], **more: Any) -> Self:
        """Decode the fields of a hash, or the same fields of an entry of the usage stream.

        Raises TypeError or ValueError for a record that is not a job's.
        """
        try:
            values = {
                name: decode(value)
                for name, key, decode in _list_decoders(cls)  # type: ignore[arg-type] # it is hashable
                if (value := raw.get(key))
            }
        except MsgspecError as error:
            raise ValueError(str(error)) from error
        return cls(id=job_id, **values, **more)

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


@cache
def _list_decoders(kind: type[JobRecord]) -> list[tuple[str, bytes, Callable[[bytes], Any]]]:
    """List the fields that are read from a hash: name, name in Redis, what decodes the value."""
    return [
        (each.name, redis_name(each.name).encode(), each.metadata["decode"])
        for each in fields(kind)
        if each.metadata
    ]


SCRIPT_FIELDS: Final[Mapping[str, str]] = {
    "web": "The web process whose end cancels the job, or empty.",
    "prices": "NewJob.prices as JSON.",
    "stored": "1 if the usage record keeps the request.",
    "reader": "The web process that reads its stream; absent from jobs of versions without `show`.",
    "trace": "NewJob.trace.",
    "bytes": "NewJob.size; absent from jobs of versions that did not count them.",
    "level": "NewJob.level; absent from jobs of versions without levels, outside the fair queue.",
    "sequences": "NewJob.sequences.",
    "head_start": "NewJob.head_start; absent if it is 0.",
    "reserved": "Tokens taken from the API key's bucket, if it has one.",
    "held": "What the job reserves from budgets, as JSON: scopes, tokens, cost.",
    "republished": "How often the message was published again since the last claim.",
}
"""Fields of the hash that only scripts read."""
RECORD_FIELDS: Final = tuple(each.name for each in fields(JobRecord) if each.metadata)
"""Fields of JobRecord that the hash has, under their names in Redis."""
