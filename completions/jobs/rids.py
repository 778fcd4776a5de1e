"""Clients' own request ids (`rid`): an API key can use each once a day."""

from collections.abc import Iterator, Sequence
from itertools import compress

import redis
import redis.asyncio

from completions.jobs.record import Keys

TTL = 24 * 3600
"""Seconds that an id stays taken."""


class RidTakenError(Exception):
    """The API key has used an id before; the first argument is the id."""


class Rids:
    """The ids of one installation's live requests."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str) -> None:
        self._client = client
        self._keys = Keys(prefix)

    async def take(self, api_key_id: int, rids: Sequence[str], job_id: str) -> None:
        """Take all or none. Raises RidTakenError."""
        keys = [self._keys.rid(api_key_id, rid) for rid in rids]
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
        """Free the ids that a job took, so that a refused request can be sent again."""
        keys = [self._keys.rid(api_key_id, rid) for rid in rids]
        held = [owner == job_id.encode() for owner in await self._client.mget(keys)]
        if any(held):
            await self._client.delete(*compress(keys, held))


class BatchRids:
    """The ids of one batch's lines, taken when the lines are checked.

    A line may take its ids again, because a check can be interrupted. So may a line of this batch
    that repeats a line of the batch whose job ids begin with `former`.
    """

    def __init__(self, client: redis.Redis, prefix: str, api_key_id: int, former: str = "") -> None:
        self._client = client
        self._keys = Keys(prefix)
        self._api_key_id = api_key_id
        self._former = former
        self._taken: list[str] = []

    def take(self, lines: Sequence[tuple[str, Sequence[str]]]) -> list[str | None]:
        """Take the ids of lines (job id, ids). Returns for each line the first id that another job
        has, or None."""
        pipeline = self._client.pipeline(transaction=False)
        for job_id, rids in lines:
            for rid in rids:
                key = self._keys.rid(self._api_key_id, rid)
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
            key = self._keys.rid(self._api_key_id, rid)
            if fresh:
                self._taken.append(key)
            elif self._former and owner.startswith(self._former):
                self._client.set(key, job_id, ex=TTL)
            elif owner != job_id:
                refused = refused or rid
        return refused

    def free(self) -> None:
        """Free all ids, so that a refused batch can be sent again."""
        if self._taken:
            self._client.delete(*self._taken)
