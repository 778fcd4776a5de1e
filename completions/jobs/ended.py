"""Ended jobs on their way from Redis to SQL."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from redis.exceptions import ResponseError

from completions.jobs.connection import Entries
from completions.jobs.record import JobRecord, hash_field, redis_name
from completions.jobs.store import SyncStore

logger = logging.getLogger(__name__)

_IS_DURABLE = redis_name("is_durable").encode()
FIRST = "-"
"""Where the entries of the usage stream begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob(JobRecord):
    """One entry of the usage stream.

    `request` is empty unless the usage record keeps it. `context` is empty unless SQL keeps the
    result or the request, and the job was not deleted meanwhile.
    """

    entry_id: bytes
    finished: float = field(metadata=hash_field(float))
    cost: int = field(default=0, metadata=hash_field(int))
    """In billionths."""
    stream: Sequence[bytes] = ()
    """The job's events as they stand in Redis, where SQL keeps the result or the request."""


def has_ended_jobs(store: SyncStore) -> bool:
    """Return whether there is an entry that SQL may not have yet."""
    return bool(store.client.xlen(store.keys.usage))


def read_ended(
    store: SyncStore, count: int, since: str = FIRST
) -> tuple[list[EndedJob], str | None]:
    """Read the oldest entries, with the context and events of those that SQL keeps. Returns
    them, and where the next entries begin, or None if there are no more."""
    client, keys = store.client, store.keys
    entries = cast("Entries", client.xrange(keys.usage, since, count=count))
    pipeline = client.pipeline(transaction=False)
    for entry_id, fields in entries:
        if _keeps_result(fields):
            job_id = fields.get(b"id", entry_id).decode()
            pipeline.hget(keys.job(job_id), redis_name("context"))
            pipeline.xrange(keys.ev(job_id))
    replies = iter(pipeline.execute())
    jobs = []
    for entry_id, fields in entries:
        stream: list[bytes] = []
        if _keeps_result(fields):
            fields[redis_name("context").encode()] = next(replies) or b""
            stream = [event[b"d"] for _, event in next(replies)]
        jobs += _read(entry_id, fields, stream)
    return jobs, f"({entries[-1][0].decode()}" if len(entries) == count else None


def _keeps_result(fields: Mapping[bytes, bytes]) -> bool:
    return fields.get(_IS_DURABLE) == b"1" or bool(fields.get(b"request"))


def read_unsettled(store: SyncStore) -> tuple[str, list[EndedJob]]:
    """Read the id of the newest entry ever added to the usage stream, and the jobs that SQL may not
    have yet, without their results."""
    client, key = store.client, store.keys.usage
    try:
        newest = client.xinfo_stream(key)["last-generated-id"].decode()
    except ResponseError:  # there is no such stream yet
        return "0-0", []
    entries = cast("Entries", client.xrange(key))
    return newest, [job for entry_id, fields in entries for job in _read(entry_id, fields)]


def _read(
    entry_id: bytes, fields: dict[bytes, bytes], stream: Sequence[bytes] = ()
) -> list[EndedJob]:
    """Read the job of an entry. Returns an empty list for an unreadable one, which must not hold up
    the others."""
    job_id = fields.get(b"id", entry_id).decode()
    try:
        return [EndedJob.read(job_id, fields, entry_id=entry_id, stream=stream)]
    except (TypeError, ValueError) as error:
        logger.error("cannot read ended job %s: %r", job_id, error)
        return []


def delete_entries(store: SyncStore, jobs: Iterable[EndedJob], ttl: int) -> None:
    """Delete the entries of jobs that SQL has. Records of durable jobs expire in `ttl` seconds."""
    keys = store.keys
    pipeline = store.client.pipeline(transaction=False)
    for job in jobs:
        if job.is_durable:
            pipeline.expire(keys.job(job.id), ttl)
            pipeline.expire(keys.ev(job.id), ttl)
        pipeline.xdel(keys.usage, job.entry_id)
    pipeline.execute()
