"""Throttles logins to the admin. Redis counts failures for all web processes: few per user and
address, more per address, and most per user. No count per user holds at an address where the user
has logged in before, so that strangers cannot lock a user out. An attempt counts before its
password is checked, so concurrent ones gain nothing. IPv6 addresses count by /64 network."""

import hashlib
import logging
from functools import cache
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

import redis
from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from redis.exceptions import RedisError

from completions.accounts.operator_groups import USER_PREFIX
from completions.jobs.connection import connect
from completions.jobs.store import Keys

logger = logging.getLogger(__name__)

WINDOW = 15 * 60
"""Seconds for which a failure counts."""
KNOWN_FOR = 30 * 24 * 3600
"""Seconds for which an address is known after a login."""
_NETWORK_BITS = 64
MOST = {"both": 5, "address": 30, "user": 200}
"""Failures within the window after which no password is checked."""


class ThrottledBackend(ModelBackend):
    """Django's backend, which refuses even the right password after too many failures."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **kwargs: object,
    ) -> User | None:
        """Raise PermissionDenied, which the login form shows as a wrong password."""
        name = username if username is not None else str(kwargs.get("username", ""))
        address = str(request.META.get("REMOTE_ADDR", "")) if request is not None else ""
        counters = _make_counters(name, _normalize_address(address))
        if not _take(counters):
            logger.warning("too many failed logins: refused", extra={"address": address})
            raise PermissionDenied
        user = super().authenticate(request, username, password, **kwargs)
        if user is None:
            logger.warning("a login failed", extra={"address": address})
        else:
            _forget(counters)
        return user

    def user_can_authenticate(self, user: Any) -> bool:
        """Refuse users of the provider: they would keep the roles of groups that they have left."""
        is_ours = not user.username.startswith(USER_PREFIX)
        return is_ours and bool(super().user_can_authenticate(user))


@cache
def get_client() -> redis.Redis:
    return connect(settings.REDIS_URL, timeout=1.0)


def _normalize_address(address: str) -> str:
    """Return the address to count under: for IPv6, the address of its network."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    return str(parsed.ipv4_mapped or IPv6Network((parsed, _NETWORK_BITS), strict=False))


def _make_counters(name: str, address: str) -> dict[str, str]:
    """Return Redis keys by kind. They contain digests, because a name may be any text."""
    both = f"{address} {name}"
    parts = {"both": both, "address": address, "user": name, "known": both}
    digests = {kind: hashlib.sha256(text.encode()).hexdigest()[:32] for kind, text in parts.items()}
    keys = Keys(settings.REDIS_PREFIX)
    return {kind: keys.login(kind, digest) for kind, digest in digests.items()}


def _take(counters: dict[str, str]) -> bool:
    """Count an attempt as a failure for now. Returns False after too many; True if Redis is down,
    so that the operator can log in."""
    try:
        pipeline = get_client().pipeline(transaction=False)
        limited = dict(counters)
        knows_address = limited.pop("known")
        if get_client().exists(knows_address):
            del limited["user"]
        keys = list(limited.values())
        for key in keys:
            pipeline.set(key, 0, ex=WINDOW, nx=True)
        for key in keys:
            pipeline.incr(key)
        counts = pipeline.execute()[len(keys) :]
        if any(count > MOST[kind] for kind, count in zip(limited, counts, strict=True)):
            for key in keys:  # a refused attempt does not extend the lockout
                pipeline.decr(key)
            pipeline.execute()
            return False
        for key in keys:
            pipeline.expire(key, WINDOW)
        pipeline.execute()
    except (RedisError, OSError) as error:
        logger.warning("a login attempt was not counted: %s", error)
    return True


def _forget(counters: dict[str, str]) -> None:
    """Reset the failures of a user who logged in, and know the address from now on. The failures of
    the address with other users remain."""
    try:
        get_client().set(counters["known"], 1, ex=KNOWN_FOR)
        get_client().decr(counters["address"])
        get_client().delete(counters["both"], counters["user"])
    except (RedisError, OSError) as error:
        logger.warning("the failed logins were not reset: %s", error)
