"""Locks in Redis for what one process at a time shall do, renewed while it goes on."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import redis
from redis.exceptions import LockError, RedisError
from redis.lock import Lock

logger = logging.getLogger(__name__)

LEASE = 15.0
"""Seconds after which the lock of a killed process is free again."""


class Lease:
    """A lock that was taken. A thread renews it until it is given back."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._over = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def alive(self) -> bool:
        """Whether it is still ours: if Redis lost it, another process may be at work."""
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
        with suppress(LockError):  # it was lost
            self._lock.release()


@contextmanager
def lease(client: redis.Redis, key: str) -> Iterator[Lease | None]:
    """The lock's lease; None when another process holds it."""
    lock = client.lock(key, timeout=LEASE, blocking=False, thread_local=False)
    if not lock.acquire():
        yield None
        return
    taken = Lease(lock)
    try:
        yield taken
    finally:
        taken.give_back()
