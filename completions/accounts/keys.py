"""Verifies API keys: the format of a secret, the principal behind it, and a short-lived cache.

`changes.py` creates and changes keys.
"""

import asyncio
import hmac
import re
import secrets
import string
import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TypeVar

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from completions.contract.limits import RATES
from completions.database.release import release
from completions.jobs.limits import UNLIMITED, Budget, Limits
from completions.models import ApiKey, Organization, Role, Scope
from completions.models.organizations import Budgets
from completions.models.usage import NANOS

_SHAPE = re.compile(r"sk-([0-9A-Za-z]{6})-([0-9A-Za-z_-]{43})-([0-9a-f]{8})")
_ALPHABET = string.ascii_letters + string.digits

POSITIVE_SECONDS = 30.0
"""Seconds for which a verified key is cached. Changes clear the cache earlier."""
NEGATIVE_SECONDS = 5.0
"""Seconds for which an unknown key is cached."""
CACHE_SIZE = 10_000
"""The most verified keys in the cache; as many unknown ones are cached apart from them."""
MAX_LOOKUPS = 2
"""Queries that a process runs at a time for keys that it has not verified lately. Anyone can make
up well-formed keys: these must not take all connections of the database, nor delay known keys."""


_T = TypeVar("_T")
_Cache = OrderedDict[str, tuple[float, _T]]
"""By digest: until when it is valid, and what is stored."""
Network = IPv4Network | IPv6Network


class Refusal(Enum):
    """Why a key is refused. The values are the API's error codes."""

    MISSING = "missing_api_key"
    INVALID = "invalid_api_key"
    REVOKED = "api_key_revoked"
    EXPIRED = "api_key_expired"


@dataclass(frozen=True, slots=True)
class Principal:
    key_id: int
    organization_id: int
    public_id: str
    allowed_models: tuple[str, ...]
    """Model ids; empty for all."""
    expires_at: datetime | None
    limits: Limits = UNLIMITED
    max_priority: int = 0
    """The highest `priority` that a request may set."""
    default_priority: int = 0
    """The priority of requests that do not set one."""
    scopes: frozenset[str] = frozenset(Scope.values)
    is_admin: bool = False
    """Whether the key may read the usage of its whole organization."""
    networks: tuple[Network, ...] = ()
    """Networks that may use the key; empty for all."""
    store_prompts: bool = False
    """Whether prompts sent with this key are stored for the operator."""
    adapters: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """References of the organization's registered adapters, by model and name."""

    def may_use(self, model: str) -> bool:
        return not self.allowed_models or model in self.allowed_models

    def may_come_from(self, address: str) -> bool:
        """Return whether an address may use the key. A key with networks refuses invalid ones."""
        return not self.networks or _is_in_network(address, self.networks)


@lru_cache(10_000)
def _is_in_network(address: str, networks: tuple[Network, ...]) -> bool:
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return any(ip in network for network in networks)


# The secret -------------------------------------------------------------------------------------


def generate() -> tuple[str, str]:
    """Return a new (public id, secret): `sk-<6>-<43 characters of 256 random bits>-<CRC-32>`."""
    public_id = "".join(secrets.choice(_ALPHABET) for _ in range(6))
    body = f"sk-{public_id}-{secrets.token_urlsafe(32)}"
    return public_id, f"{body}-{_checksum(body)}"


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def is_well_formed(secret: str) -> bool:
    """Return whether the secret has the right format, so that a typo costs no lookup."""
    match = _SHAPE.fullmatch(secret)
    return match is not None and _checksum(secret[: match.start(3) - 1]) == match[3]


def mask_secret(secret: str) -> str:
    """Return the public part of a secret, for messages; `***` if it is malformed."""
    match = _SHAPE.fullmatch(secret)
    return mask_public_id(match[1]) if match else "***"


def mask_public_id(public_id: str) -> str:
    return f"sk-{public_id}-..."


def digest(secret: str, pepper: str) -> str:
    """Return the HMAC-SHA256 in hex. Secrets have 256 random bits, so they need no slow hash."""
    return hmac.digest(pepper.encode(), secret.encode(), "sha256").hex()


def read_limits(key: ApiKey) -> Limits:
    rates = {rate.name: limit for rate in RATES if (limit := getattr(key, rate.column))}
    return Limits(rates, key.max_concurrency, read_budget(key), read_budget(key.organization))


def read_budget(owner: Budgets) -> Budget:
    """Return the budgets of a key or an organization, costs in billionths of the currency."""
    return Budget(
        owner.daily_token_budget,
        owner.monthly_token_budget,
        _nanos(owner.daily_cost_budget),
        _nanos(owner.monthly_cost_budget),
    )


def _nanos(amount: Decimal | None) -> int | None:
    return None if amount is None else int(amount * NANOS)


def make_principal(key: ApiKey) -> Principal:
    return Principal(
        key_id=key.pk,
        organization_id=key.organization_id,
        public_id=key.public_id,
        allowed_models=tuple(key.allowed_models),
        expires_at=key.expires_at,
        limits=read_limits(key),
        max_priority=key.max_priority,
        default_priority=key.default_priority,
        scopes=frozenset(key.scopes),
        is_admin=key.role == Role.ADMIN,
        networks=tuple(map(ip_network, key.allowed_networks)),
        store_prompts=key.organization.store_prompts,
        adapters=_read_adapters(key.organization),
    )


def _read_adapters(organization: Organization) -> dict[str, dict[str, str]]:
    by_model: dict[str, dict[str, str]] = {}
    for adapter in organization.adapters.all():
        if adapter.retired_at is None:
            by_model.setdefault(adapter.model, {})[adapter.name] = adapter.reference
    return by_model


# Verification -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What the database knows about a digest."""

    principal: Principal
    revoked: bool


Lookup = Callable[[str], Awaitable[StoredKey | None]]


async def look_up(digest: str) -> StoredKey | None:
    """Return the key whose current or previous secret has this digest."""
    keys = ApiKey.objects.with_organizations()
    key = await keys.filter(Q(digest=digest) | Q(previous_digest=digest)).afirst()
    await release()
    if key is None:
        return None
    revoked = key.revoked_at is not None or key.organization.suspended_at is not None
    principal = make_principal(key)
    if key.digest != digest:  # the previous secret
        ends = min(at for at in (key.expires_at, key.previous_expires_at) if at is not None)
        principal = replace(principal, public_id=key.previous_public_id, expires_at=ends)
    return StoredKey(principal, revoked)


class KeyRing:
    """Verifies secrets for one process, with at most one query per key and cache period."""

    def __init__(
        self,
        look_up: Lookup = look_up,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = timezone.now,
    ) -> None:
        self._look_up = look_up
        self._clock = clock
        self._now = now
        self._known: _Cache[StoredKey] = OrderedDict()
        self._unknown: _Cache[None] = OrderedDict()
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS)
        self._epoch = 0
        self._used: dict[int, float] = {}

    def clear(self) -> None:
        """Clear the cache. Queries already in flight do not refill it."""
        self._epoch += 1
        self._known.clear()
        self._unknown.clear()

    async def verify(self, secret: str) -> Principal | Refusal:
        """Return the holder of a secret, or why it is refused."""
        if not is_well_formed(secret):
            return Refusal.INVALID
        stored = await self._find(digest(secret, settings.KEY_PEPPER))
        if stored is None:
            return Refusal.INVALID
        if stored.revoked:
            return Refusal.REVOKED
        expires_at = stored.principal.expires_at
        if expires_at is not None and expires_at <= self._now():
            return Refusal.EXPIRED
        self._used[stored.principal.key_id] = self._now().timestamp()
        return stored.principal

    def take_used(self) -> dict[int, float]:
        """Return the keys used since the last call, as Unix times by key id."""
        used, self._used = self._used, {}
        return used

    async def _find(self, public_id: str) -> StoredKey | None:
        if (cached := self._get_cached(public_id)) is not None:
            return cached[1]
        async with nullcontext() if public_id in self._known else self._lookups:
            if (cached := self._get_cached(public_id)) is not None:  # meanwhile
                return cached[1]
            epoch = self._epoch
            stored = await self._look_up(public_id)
        if epoch == self._epoch:
            if stored is None:
                _keep(self._unknown, public_id, self._clock() + NEGATIVE_SECONDS, None)
            else:
                _keep(self._known, public_id, self._clock() + POSITIVE_SECONDS, stored)
        return stored

    def _get_cached(self, public_id: str) -> tuple[float, StoredKey | None] | None:
        cached = self._known.get(public_id) or self._unknown.get(public_id)
        return cached if cached is not None and self._clock() < cached[0] else None


def _keep(cache: "_Cache[_T]", public_id: str, until: float, stored: _T) -> None:
    cache[public_id] = (until, stored)
    cache.move_to_end(public_id)
    if len(cache) > CACHE_SIZE:
        cache.popitem(last=False)
