"""API keys: made, stored as keyed digests, verified from a short-lived cache, revoked."""

import hmac
import logging
import re
import secrets
import string
import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from hashlib import sha256

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from redis.exceptions import RedisError

from completions.jobs.connection import connect
from completions.jobs.limits import UNLIMITED, Limits
from completions.models import ApiKey, Organization

logger = logging.getLogger(__name__)

_SHAPE = re.compile(r"sk-([0-9A-Za-z]{6})-([0-9A-Za-z_-]{43})-([0-9a-f]{8})")
_ALPHABET = string.ascii_letters + string.digits

POSITIVE_SECONDS = 30.0
"""How long a verified key is trusted without asking SQL again; changes are also announced."""
NEGATIVE_SECONDS = 5.0
CACHE_SIZE = 10_000
_ANNOUNCE_TIMEOUT = 1.0


class Refusal(Enum):
    """Why a key is not accepted; the values are the API's error codes."""

    MISSING = "missing_api_key"
    INVALID = "invalid_api_key"
    REVOKED = "api_key_revoked"
    EXPIRED = "api_key_expired"


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified caller."""

    key_id: int
    organization_id: int
    public_id: str
    allowed_models: tuple[str, ...]
    """Empty means every model."""
    expires_at: datetime | None
    limits: Limits = UNLIMITED
    max_priority: int = 0
    """The largest `priority` that it may ask for."""

    def may_use(self, model: str) -> bool:
        return not self.allowed_models or model in self.allowed_models


# The secret -------------------------------------------------------------------------------------


def generate() -> tuple[str, str]:
    """A new (public id, secret): `sk-<6>-<43 characters of 256 random bits>-<CRC-32>`."""
    public_id = "".join(secrets.choice(_ALPHABET) for _ in range(6))
    body = f"sk-{public_id}-{secrets.token_urlsafe(32)}"
    return public_id, f"{body}-{_checksum(body)}"


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def well_formed(secret: str) -> bool:
    """Whether it can be a key at all: a typo costs no look-up."""
    match = _SHAPE.fullmatch(secret)
    return match is not None and _checksum(secret[: match.start(3) - 1]) == match[3]


def masked(secret: str) -> str:
    """For messages: the public part of a key, nothing of anything else."""
    match = _SHAPE.fullmatch(secret)
    return f"sk-{match[1]}-..." if match else "***"


def digest(secret: str, pepper: str) -> str:
    """HMAC-SHA256 in hex. Slow hashing is for guessable secrets; these are 256 random bits."""
    return hmac.new(pepper.encode(), secret.encode(), sha256).hexdigest()


def principal_of(key: ApiKey) -> Principal:
    """Whom a stored key stands for."""
    return Principal(
        key_id=key.pk,
        organization_id=key.organization_id,
        public_id=key.public_id,
        allowed_models=tuple(key.allowed_models),
        expires_at=key.expires_at,
        limits=Limits(key.requests_per_minute, key.tokens_per_minute, key.max_concurrency),
        max_priority=key.max_priority,
    )


# Changes ----------------------------------------------------------------------------------------


def create(
    organization: Organization,
    name: str,
    allowed_models: Iterable[str] = (),
    expires_at: datetime | None = None,
    limits: Limits = UNLIMITED,
    max_priority: int = 0,
) -> tuple[ApiKey, str]:
    """Store a new key. Returns it with its secret."""
    key = ApiKey(
        organization=organization,
        name=name,
        allowed_models=list(allowed_models),
        expires_at=expires_at,
        max_priority=max_priority,
        **asdict(limits),
    )
    return key, issue(key)


def issue(key: ApiKey) -> str:
    """Draw a secret for an unsaved key and save it. Nothing can show the secret again."""
    key.public_id, secret = generate()
    key.digest = digest(secret, settings.KEY_PEPPER)
    key.save(force_insert=True)
    return secret


def revoke(key: ApiKey) -> bool:
    """End a key for good. False when it had been revoked before."""
    now = timezone.now()
    changed = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=now)
    transaction.on_commit(announce_change)
    return bool(changed)


def announce_change() -> None:
    """Tell every web process to forget its cached keys. SQL stays the truth: never fails."""
    try:
        with connect(settings.REDIS_URL, timeout=_ANNOUNCE_TIMEOUT) as client:
            client.xadd(f"{settings.REDIS_PREFIX}keys", {"changed": "1"}, maxlen=100)
    except RedisError as error:
        logger.warning(
            "could not announce a changed API key (%s); web processes notice within %.0f s",
            error,
            POSITIVE_SECONDS,
        )


# Verification -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What SQL says of a digest."""

    principal: Principal
    digest: str
    revoked: bool


Lookup = Callable[[str], Awaitable[StoredKey | None]]


async def look_up(digest: str) -> StoredKey | None:
    """The stored key with this digest."""
    key = await ApiKey.objects.filter(digest=digest).afirst()
    if key is None:
        return None
    return StoredKey(principal_of(key), key.digest, key.revoked_at is not None)


class KeyRing:
    """Verifies secrets for one process, asking SQL at most once per key and cache period."""

    def __init__(
        self,
        look_up: Lookup = look_up,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = timezone.now,
    ) -> None:
        self._look_up = look_up
        self._clock = clock
        self._now = now
        self._cache: OrderedDict[str, tuple[float, StoredKey | None]] = OrderedDict()
        self._epoch = 0

    def clear(self) -> None:
        """Forget everything, answers still on their way from SQL included."""
        self._epoch += 1
        self._cache.clear()

    async def verify(self, secret: str) -> Principal | Refusal:
        """Who holds this secret, or why it is refused."""
        if not well_formed(secret):
            return Refusal.INVALID
        wanted = digest(secret, settings.KEY_PEPPER)
        stored = await self._stored(wanted)
        if stored is None or not hmac.compare_digest(stored.digest, wanted):
            return Refusal.INVALID
        if stored.revoked:
            return Refusal.REVOKED
        expires_at = stored.principal.expires_at
        if expires_at is not None and expires_at <= self._now():
            return Refusal.EXPIRED
        return stored.principal

    async def _stored(self, wanted: str) -> StoredKey | None:
        cached = self._cache.get(wanted)
        if cached is not None and self._clock() < cached[0]:
            return cached[1]
        epoch = self._epoch
        stored = await self._look_up(wanted)
        if epoch == self._epoch:
            keep = POSITIVE_SECONDS if stored else NEGATIVE_SECONDS
            self._cache[wanted] = (self._clock() + keep, stored)
            self._cache.move_to_end(wanted)
            if len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)
        return stored
