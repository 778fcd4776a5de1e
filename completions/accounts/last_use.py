"""The last use of API keys: the web tier stores it in Redis, the CPU worker writes it to SQL."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast

import redis
import redis.asyncio

from completions.jobs.record import Keys
from completions.models import ApiKey
from completions.models.parts import parts

_AT_ONCE = 200


async def note(client: redis.asyncio.Redis, prefix: str, used: Mapping[int, float]) -> None:
    """Store Unix times by key id in Redis. Raises RedisError or OSError."""
    if used:
        await client.hset(Keys(prefix).used, mapping={str(pk): at for pk, at in used.items()})


def flush(client: redis.Redis, prefix: str) -> int:
    """Move the times from Redis to SQL. Returns the number of keys."""
    noted = cast("dict[bytes, bytes]", client.hgetall(Keys(prefix).used))
    used = {int(pk): datetime.fromtimestamp(float(at), UTC) for pk, at in noted.items()}
    for ids in parts(used, _AT_ONCE):
        rows = list(ApiKey.objects.filter(id__in=ids).only("id"))
        for row in rows:
            row.last_used_at = used[row.pk]
        ApiKey.objects.bulk_update(rows, ["last_used_at"])
        client.hdel(Keys(prefix).used, *map(str, ids))
    return len(used)
