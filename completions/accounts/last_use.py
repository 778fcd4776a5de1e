"""The last use of API keys. The web tier stores it in Redis, the background worker writes it to
SQL."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast

from completions.database.parts import parts
from completions.jobs.store import AsyncStore, SyncStore
from completions.models import ApiKey

_BATCH_SIZE = 200


async def note(store: AsyncStore, used: Mapping[int, float]) -> None:
    """Store Unix times by key id in Redis. Raises RedisError or OSError."""
    if used:
        await store.client.hset(store.keys.used, mapping={str(pk): at for pk, at in used.items()})


def flush(store: SyncStore) -> int:
    """Move the times from Redis to SQL. Returns the number of keys."""
    noted = cast("dict[bytes, bytes]", store.client.hgetall(store.keys.used))
    used = {int(pk): datetime.fromtimestamp(float(at), UTC) for pk, at in noted.items()}
    for ids in parts(used, _BATCH_SIZE):
        rows = list(ApiKey.objects.filter(id__in=ids).only("id"))
        for row in rows:
            row.last_used_at = used[row.pk]
        ApiKey.objects.bulk_update(rows, ["last_used_at"])
        store.client.hdel(store.keys.used, *map(str, ids))
    return len(used)
