"""Callers' own request ids: each is taken for a day per API key."""

from collections.abc import Sequence
from itertools import compress

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
        return [f"{self._prefix}rid:{api_key_id}:{rid}" for rid in rids]
