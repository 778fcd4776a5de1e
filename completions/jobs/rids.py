"""Callers' own request ids: each is taken for a day per API key."""

from collections.abc import Iterator, Sequence
from itertools import compress

import redis
import redis.asyncio

TTL = 24 * 3600
"""Seconds."""


class RidTakenError(Exception):
    """The API key has used this id before; the first argument is the id."""


class Rids:
    """Of one installation."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    async def take(self, api_key_id: int, rids: Sequence[str], job_id: str) -> None:
        """All or none. Raises RidTakenError."""
        keys = self._keys(api_key_id, rids)
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.set(key, job_id, nx=True, ex=TTL)
        taken = [bool(reply) for reply in await pipeline.execute()]
        if all(taken):
            return
        if any(taken):
            await self._client.delete(*compress(keys, taken))
        raise RidTakenError(rids[taken.index(False)])

    async def free(self, api_key_id: int, rids: Sequence[str], job_id: str) -> None:
        """Those that this job took, which was refused and may be sent again."""
        keys = self._keys(api_key_id, rids)
        held = [owner == job_id.encode() for owner in await self._client.mget(keys)]
        if any(held):
            await self._client.delete(*compress(keys, held))

    def _keys(self, api_key_id: int, rids: Sequence[str]) -> list[str]:
        return [_key(self._prefix, api_key_id, rid) for rid in rids]


class BatchRids:
    """Those of one batch's lines, which take them when they are checked.

    What a line has taken it may take again, since a check may be interrupted; so may a line of the
    batch whose lines begin with `former`, which this one repeats.
    """

    def __init__(self, client: redis.Redis, prefix: str, api_key_id: int, former: str = "") -> None:
        self._client = client
        self._prefix = prefix
        self._api_key_id = api_key_id
        self._former = former
        self._taken: list[str] = []

    def take(self, lines: Sequence[tuple[str, Sequence[str]]]) -> list[str | None]:
        """For each (job id, its ids) the first id that is another's, or None."""
        pipeline = self._client.pipeline(transaction=False)
        for job_id, rids in lines:
            for rid in rids:
                key = _key(self._prefix, self._api_key_id, rid)
                pipeline.set(key, job_id, nx=True, ex=TTL)
                pipeline.get(key)
        replies = iter(pipeline.execute())
        return [self._refused(job_id, rids, replies) for job_id, rids in lines]

    def _refused(
        self, job_id: str, rids: Sequence[str], replies: Iterator[bytes | None]
    ) -> str | None:
        refused = None
        for rid in rids:
            fresh, owner = next(replies), (next(replies) or b"").decode()
            key = _key(self._prefix, self._api_key_id, rid)
            if fresh:
                self._taken.append(key)
            elif self._former and owner.startswith(self._former):
                self._client.set(key, job_id, ex=TTL)
            elif owner != job_id:
                refused = refused or rid
        return refused

    def free(self) -> None:
        """All that were taken, for a batch that was refused and may be sent again."""
        if self._taken:
            self._client.delete(*self._taken)


def _key(prefix: str, api_key_id: int, rid: str) -> str:
    return f"{prefix}rid:{api_key_id}:{rid}"
