"""Keeps an installation from using other shards than those that have its jobs."""

from completions.jobs.sharding.shards import Layout, SyncShards
from completions.jobs.store import SyncStore


class LayoutError(Exception):
    """The jobs of the installation lie, or may lie, in other shards."""


_REMEDY = "Go back to the former settings of Redis and run: manage.py reshard"


def require_layout(layout: Layout, shards: SyncShards) -> None:
    """Note the shards in the central Redis, if they are several. Raises LayoutError if others are
    noted or have jobs, and RedisError."""
    client, key = shards.central.client, shards.central.keys.layout
    noted = client.get(key)
    if noted is None and not layout.is_central_only:
        if _count_jobs(shards.central):
            raise LayoutError(f"Redis has jobs of an installation with one shard. {_REMEDY}")
        client.set(key, layout.name, nx=True)
        noted = client.get(key)
    if isinstance(noted, bytes) and noted.decode() != layout.name:
        raise LayoutError(
            f"The jobs of this installation lie in {noted.decode()}, and the settings say "
            f"{layout.name}. {_REMEDY}"
        )


def leave_layout(layout: Layout, shards: SyncShards) -> None:
    """Forget the shards, so that the next start may use others. Raises LayoutError while they have
    jobs, and RedisError."""
    require_layout(layout, shards)
    if count := sum(map(_count_jobs, shards)):
        raise LayoutError(
            f"Redis has {count} jobs that have not ended or are not in SQL yet. Stop the web "
            "processes, let workers and the background worker finish, and try again."
        )
    shards.central.client.delete(shards.central.keys.layout)


def _count_jobs(store: SyncStore) -> int:
    return int(store.client.zcard(store.keys.open)) + int(store.client.xlen(store.keys.usage))
