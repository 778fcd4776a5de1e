"""Clients' own request ids (`rid`): an API key can use each once a day."""

from collections.abc import Sequence
from itertools import compress

from completions.jobs.store import AsyncStore, SyncStore

RID_TTL = 24 * 3600
"""Seconds that an id stays taken."""


class RidTakenError(Exception):
    """The API key has used an id before; the first argument is the id."""


class Rids:
    """The ids of one installation's live requests."""

    def __init__(self, store: AsyncStore) -> None:
        self._client = store.client
        self._keys = store.keys

    async def take(self, api_key_id: int, rids: Sequence[str], job_id: str) -> None:
        """Take all ids or none. Raises RidTakenError."""
        keys = [self._keys.rid(api_key_id, rid) for rid in rids]
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.set(key, job_id, nx=True, ex=RID_TTL)
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

    A line may take its ids again, because a check can be interrupted. So may a line that repeats a
    line of an earlier batch, whose job ids begin with `former`.
    """

    def __init__(self, store: SyncStore, api_key_id: int, former: str = "") -> None:
        self._client = store.client
        self._keys = store.keys
        self._api_key_id = api_key_id
        self._former = former
        self._taken: dict[str, str] = {}
        """Keys, each with the job that had it before; empty if it was free."""

    def take(self, lines: Sequence[tuple[str, Sequence[str]]]) -> list[str | None]:
        """Take the ids of lines, given as (job id, ids). Returns for each line the first id that
        another job has, or None."""
        pipeline = self._client.pipeline(transaction=False)
        asked = [(job_id, rid) for job_id, rids in lines for rid in rids]
        for job_id, rid in asked:
            key = self._keys.rid(self._api_key_id, rid)
            pipeline.set(key, job_id, nx=True, ex=RID_TTL)
            pipeline.get(key)
        owners = pipeline.execute()[1::2]
        refused: dict[str, str] = {}
        for (job_id, rid), owner in zip(asked, owners, strict=True):
            if not self._takes(job_id, rid, (owner or b"").decode()):
                refused.setdefault(job_id, rid)
        return [refused.get(job_id) for job_id, _ in lines]

    def _takes(self, job_id: str, rid: str, owner: str) -> bool:
        key = self._keys.rid(self._api_key_id, rid)
        if owner == job_id:  # it was free, or an interrupted check has taken it
            self._taken.setdefault(key, "")
            return True
        if self._former and owner.startswith(self._former):
            self._client.set(key, job_id, ex=RID_TTL)
            self._taken[key] = owner
            return True
        return False

    def free(self) -> None:
        """Give all ids back, so that a refused batch can be sent again."""
        pipeline = self._client.pipeline(transaction=False)
        for key, owner in self._taken.items():
            if owner:
                pipeline.set(key, owner, ex=RID_TTL)
            else:
                pipeline.delete(key)
        pipeline.execute()
