"""Guessing passwords of the admin takes for ever.

Failures are counted in Redis, so in all web processes alike: few per user and address, more per
address, most per user, so that a stranger elsewhere cannot lock a user out with a handful of tries.
"""

import hashlib
import logging
from functools import cache
from typing import Any

import redis
from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from redis.exceptions import RedisError

from completions.jobs.connection import connect

logger = logging.getLogger(__name__)

WINDOW = 15 * 60
"""Seconds after a failure for which it counts."""
MOST = {"both": 5, "address": 30, "user": 200}
"""Failures within the window after which no password is looked at any more."""


class ThrottledBackend(ModelBackend):
    """Django's own, unless too many tries have failed: then even the right password does not help,
    and no hash is computed."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **kwargs: Any,
    ) -> User | None:
        """Raises PermissionDenied, which the login form shows like a wrong password."""
        name = username if username is not None else str(kwargs.get("username", ""))
        address = str(request.META.get("REMOTE_ADDR", "")) if request is not None else ""
        counters = _counters(name, address)
        if _exceeded(counters):
            logger.warning("too many failed logins: refused", extra={"address": address})
            raise PermissionDenied
        user = super().authenticate(request, username, password, **kwargs)
        if user is None:
            _count(counters)
            logger.warning("a login failed", extra={"address": address})
        else:
            _forget(counters)
        return user


@cache
def _client() -> redis.Redis:
    return connect(settings.REDIS_URL, timeout=1.0)


def _counters(name: str, address: str) -> dict[str, str]:
    """Keys by kind; a name may be anything, so keys hold digests."""
    parts = {"both": f"{address} {name}", "address": address, "user": name}
    digests = {kind: hashlib.sha256(text.encode()).hexdigest()[:32] for kind, text in parts.items()}
    return {kind: f"{settings.REDIS_PREFIX}login:{kind}:{d}" for kind, d in digests.items()}


def _exceeded(counters: dict[str, str]) -> bool:
    """False while Redis is away: then there is nothing to administer but the outage itself."""
    try:
        counts = _client().mget(list(counters.values()))
    except (RedisError, OSError):
        return False
    return any(int(count or 0) >= MOST[kind] for kind, count in zip(counters, counts, strict=True))


def _count(counters: dict[str, str]) -> None:
    try:
        pipeline = _client().pipeline(transaction=False)
        for key in counters.values():
            pipeline.incr(key)
            pipeline.expire(key, WINDOW)
        pipeline.execute()
    except (RedisError, OSError) as error:
        logger.warning("a failed login was not counted: %s", error)


def _forget(counters: dict[str, str]) -> None:
    """A user who knows the password has no failures; the address may have tried others."""
    try:
        _client().delete(counters["both"], counters["user"])
    except (RedisError, OSError) as error:
        logger.warning("failed logins were not forgotten: %s", error)
