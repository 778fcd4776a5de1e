"""What a web process keeps open to one shard."""

import asyncio
import logging
from collections.abc import Callable

from django.conf import settings
from redis.exceptions import RedisError

from completions.jobs.limits import ByteBounds
from completions.jobs.operate import is_nearly_full
from completions.jobs.reading.follow import EventReader
from completions.jobs.sharding.shards import Address, Layout
from completions.jobs.store import AsyncStore
from completions.jobs.submit import WEB_LEASE, Broker, Submission

logger = logging.getLogger(__name__)


class WebShard:
    """The lease of a web process in one shard, what it submits there, and its reader of events."""

    def __init__(
        self,
        store: AsyncStore,
        address: Address,
        web_id: str,
        on_keys_changed: Callable[[], None],
        broker: Broker | None = None,
    ) -> None:
        self.store = store
        self.submission = Submission(store, web_id, broker)
        self.reader = EventReader(address.url, address.prefix, web_id, on_keys_changed)
        self.byte_bounds = make_byte_bounds(0)
        self.is_full = False
        """Whether the shard's Redis has too little room for new jobs."""

    async def keep_lease(self) -> None:
        """Renew the lease until cancelled. Jobs of a web process whose lease expires are
        cancelled."""
        while True:
            try:
                await self.submission.renew_lease()
                memory = await self.store.client.info("memory")
                self.is_full = is_nearly_full(memory)
                self.byte_bounds = make_byte_bounds(memory["maxmemory"])
            except (RedisError, OSError) as error:
                logger.warning("cannot renew the lease: %s", error)
            await asyncio.sleep(WEB_LEASE / 3)

    async def close(self) -> None:
        await self.reader.close()
        await self.store.client.aclose()


def make_byte_bounds(memory_limit: int) -> ByteBounds:
    """Return the bounds of a shard's part of a Redis whose maxmemory is `memory_limit` bytes."""
    part = memory_limit // Layout.read(settings).per_server
    of_key = settings.MAX_QUEUED_BYTES_PER_KEY
    return ByteBounds.derive(part, settings.MAX_QUEUED_BYTES, of_key)
