"""Ended jobs as Redis tells of them, until SQL has what is to stay of them."""

import logging
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson
import redis

from completions.jobs.connection import Entries
from completions.jobs.events import (
    EndState,
    Event,
    JobError,
    Usage,
    decode,
)
from completions.jobs.submission import Kind

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndedJob:
    """One entry of the usage stream; with the job's view and events where SQL keeps its result.

    Times are Unix seconds.
    """

    entry_id: bytes
    id: str
    kind: Kind
    state: EndState
    model: str
    organization_id: int
    api_key_id: int
    created: float
    started: float | None
    finished: float
    usage: Usage | None
    cost: int
    """In billionths."""
    adapter: str
    first: float | None
    """When its first token was published."""
    attempts: int
    worker: str
    parameters: Mapping[str, Any]
    request: bytes
    """What the worker was told, in JSON; empty unless it is to be stored."""
    error: JobError | None
    kept: bool
    request_id: str = ""
    view: Mapping[str, Any] | None = None
    """None when it is not kept, or was deleted meanwhile."""
    events: Sequence[bytes] = ()
    """The stream's entries as they stand in Redis."""


def any_ended(client: redis.Redis, prefix: str) -> bool:
    """Whether there is an entry that nobody has forgotten yet."""
    return bool(client.xlen(f"{prefix}usage"))


FIRST = "-"
"""Where the entries begin."""


def read_ended(
    client: redis.Redis, prefix: str, count: int, since: str = FIRST
) -> tuple[list[EndedJob], str | None]:
    """The oldest entries that nobody has forgotten yet, with the results of those to keep, and
    where the next ones begin, or None if there are none."""
    entries = cast("Entries", client.xrange(f"{prefix}usage", since, count=count))
    found = [{k.decode(): v.decode() for k, v in fields.items()} for _, fields in entries]
    pipeline = client.pipeline(transaction=False)
    for entry in found:
        if entry.get("kept") == "1":
            pipeline.hget(f"{prefix}job:{entry['id']}", "view")
            pipeline.xrange(f"{prefix}ev:{entry['id']}")
    replies = iter(pipeline.execute())
    jobs = []
    for (entry_id, _), entry in zip(entries, found, strict=True):
        view, events = None, []
        if entry.get("kept") == "1":
            view, stream = next(replies), next(replies)
            events = [fields[b"d"] for _, fields in stream]
        try:
            jobs.append(_ended(entry_id, entry, view, events))
        except (KeyError, TypeError, ValueError) as error:
            logger.error("ended job %s cannot be read: %r", entry.get("id", entry_id), error)
    return jobs, f"({entries[-1][0].decode()}" if len(entries) == count else None


def _ended(
    entry_id: bytes, entry: Mapping[str, str], view: bytes | None, events: Sequence[bytes]
) -> EndedJob:
    usage, error = entry["usage"], entry["error"]
    return EndedJob(
        entry_id=entry_id,
        id=entry["id"],
        kind=entry["kind"],  # type: ignore[arg-type]
        state=entry["state"],  # type: ignore[arg-type]
        model=entry["model"],
        organization_id=int(entry["organization"]),
        api_key_id=int(entry["key"]),
        created=float(entry["created"]),
        started=float(entry["started"]) if entry["started"] else None,
        finished=float(entry["finished"]),
        usage=Usage(**orjson.loads(usage)) if usage else None,
        cost=int(entry.get("cost", 0)),
        adapter=entry.get("adapter", ""),
        first=float(entry["first"]) if entry.get("first") else None,
        attempts=int(entry.get("attempts", 0)),
        worker=entry.get("worker", ""),
        parameters=orjson.loads(entry.get("parameters") or "{}"),
        request=entry.get("request", "").encode(),
        error=JobError(**orjson.loads(error)) if error else None,
        kept=entry.get("kept") == "1",
        request_id=entry.get("request_id", ""),
        view=orjson.loads(view) if view else None,
        events=events,
    )


def forget(client: redis.Redis, prefix: str, jobs: Iterable[EndedJob], ttl: int) -> None:
    """SQL has them: delete their entries, and let the kept ones expire in `ttl` seconds."""
    pipeline = client.pipeline(transaction=False)
    for job in jobs:
        if job.kept:
            pipeline.expire(f"{prefix}job:{job.id}", ttl)
            pipeline.expire(f"{prefix}ev:{job.id}", ttl)
        pipeline.xdel(f"{prefix}usage", job.entry_id)
    pipeline.execute()


def pack(events: Iterable[bytes]) -> bytes:
    """A stream's entries in one compressed piece; JSON holds no line break."""
    return zlib.compress(b"\n".join(events))


def unpack(packed: bytes) -> list[Event]:
    """The events of what :func:`pack` made."""
    return [decode(data) for data in zlib.decompress(packed).split(b"\n")]
