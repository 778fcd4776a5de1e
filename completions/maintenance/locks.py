"""Locks in Redis for work that only one process may do at a time."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from redis.exceptions import LockError, RedisError
from redis.lock import Lock

from completions.jobs.store import SyncStore

logger = logging.getLogger(__name__)

LEASE = 15.0
"""Seconds after which the lock of a killed process expires."""


class Lease:
    """A lock that this process holds. A thread renews it until `give_back`."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._over = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def alive(self) -> bool:
        """Return whether the lock is still held. If Redis lost it, another process may hold it."""
        return not self._lost

    def _renew(self) -> None:
        while not self._over.wait(LEASE / 3):
            try:
                self._lock.extend(LEASE, replace_ttl=True)
            except (RedisError, OSError) as error:
                logger.warning("lost the lock %s: %s", self._lock.name, error)
                self._lost = True
                return

    def give_back(self) -> None:
        self._over.set()
        self._thread.join()
        with suppress(LockError):  # the lock was lost
            self._lock.release()


@contextmanager
def lease(store: SyncStore, name: str) -> Iterator[Lease | None]:
    """Acquire the lock for a block. Yields None if another process holds it."""
    lock = store.client.lock(
        store.keys.lock(name), timeout=LEASE, blocking=False, thread_local=False
    )
    if not lock.acquire():
        yield None
        return
    taken = Lease(lock)
    try:
        yield taken
    finally:
        taken.give_back()
