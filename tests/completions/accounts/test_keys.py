"""Keys: their shape, their digests, and what a ring trusts for how long."""

import asyncio
import zlib
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from completions.accounts import changes, keys
from completions.accounts.audit import SERVICE
from completions.accounts.keys import KeyRing, Principal, Refusal, StoredKey
from completions.models import ApiKey
from tests.completions.conftest import Tenant
from tests.conftest import PrivateValkey


def test_generated_keys() -> None:
    public_id, secret = keys.generate()
    assert keys.is_well_formed(secret)
    assert secret.startswith(f"sk-{public_id}-")
    assert len(secret) == len("sk-") + 6 + 1 + 43 + 1 + 8
    assert secret != keys.generate()[1]


@given(st.integers(0, 60), st.characters(codec="ascii"))
def test_one_wrong_character_is_noticed(position: int, character: str) -> None:
    secret = "sk-aB3xY9-" + "q" * 43
    secret += "-" + f"{zlib.crc32(secret.encode()):08x}"
    typo = secret[:position] + character + secret[position + 1 :]
    assert keys.is_well_formed(typo) == (typo == secret)


@given(st.text())
def test_masks_never_show_more_than_the_public_part(text: str) -> None:
    assert keys.mask_secret(text) == "***"


def test_masked_key() -> None:
    public_id, secret = keys.generate()
    assert keys.mask_secret(secret) == f"sk-{public_id}-..."


def test_digest_depends_on_the_pepper() -> None:
    assert len(keys.digest("a", "p")) == 64
    assert keys.digest("a", "p") != keys.digest("a", "q")


class Stored:
    """A look-up that counts, over keys by digest."""

    def __init__(self) -> None:
        self.by_digest: dict[str, StoredKey] = {}
        self.asked = 0
        self.during = lambda: None

    async def __call__(self, digest: str) -> StoredKey | None:
        self.asked += 1
        found = self.by_digest.get(digest)
        self.during()
        return found

    def add(self, revoked: bool = False) -> tuple[str, Principal]:
        public_id, secret = keys.generate()
        principal = Principal(1, 1, public_id, (), None)
        digest = keys.digest(secret, settings.KEY_PEPPER)
        self.by_digest[digest] = StoredKey(principal, revoked)
        return secret, principal


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_verified_keys_are_trusted_for_half_a_minute() -> None:
    stored, clock = Stored(), Clock()
    ring = KeyRing(stored, clock)
    secret, principal = stored.add()
    for clock.now in (0.0, 29.0):
        assert await ring.verify(secret) == principal
    assert stored.asked == 1
    clock.now = 31.0
    assert await ring.verify(secret) == principal
    assert stored.asked == 2


async def test_unknown_keys_are_asked_for_again_soon() -> None:
    stored, clock = Stored(), Clock()
    ring = KeyRing(stored, clock)
    secret = keys.generate()[1]
    for clock.now in (0.0, 4.0, 6.0):
        assert await ring.verify(secret) is Refusal.INVALID
    assert stored.asked == 2


async def test_malformed_keys_are_not_asked_for() -> None:
    stored = Stored()
    assert await KeyRing(stored).verify("sk-nonsense") is Refusal.INVALID
    assert stored.asked == 0


async def test_clearing_forgets_answers_still_on_their_way() -> None:
    stored = Stored()
    ring = KeyRing(stored)
    secret, _ = stored.add()
    stored.during = ring.clear  # revoked while SQL was answering
    assert isinstance(await ring.verify(secret), Principal)
    stored.by_digest.clear()
    assert await ring.verify(secret) is Refusal.INVALID


async def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "CACHE_SIZE", 3)
    stored = Stored()
    ring = KeyRing(stored)
    secrets = [keys.generate()[1] for _ in range(10)]
    for secret in secrets:
        await ring.verify(secret)
    for secret in secrets[-3:]:
        await ring.verify(secret)
    assert stored.asked == 10
    await ring.verify(secrets[-4])
    assert stored.asked == 11


async def test_unknown_keys_displace_no_verified_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "CACHE_SIZE", 3)
    stored = Stored()
    ring = KeyRing(stored)
    secret, principal = stored.add()
    await ring.verify(secret)
    for _ in range(10):
        await ring.verify(keys.generate()[1])
    assert await ring.verify(secret) == principal
    assert stored.asked == 11


async def test_unknown_keys_take_few_connections() -> None:
    running = most = 0

    async def look_up(_digest: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    ring = KeyRing(look_up)
    secrets = [keys.generate()[1] for _ in range(20)]
    found = await asyncio.gather(*map(ring.verify, secrets))
    assert set(found) == {Refusal.INVALID}
    assert most == keys.MAX_LOOKUPS


async def test_unknown_keys_do_not_delay_a_known_one() -> None:
    stored, clock, is_free = Stored(), Clock(), asyncio.Event()
    secret, principal = stored.add()

    async def look_up(digest: str) -> StoredKey | None:
        if (found := await stored(digest)) is None:
            await is_free.wait()
        return found

    ring = KeyRing(look_up, clock)
    await ring.verify(secret)
    clock.now = keys.POSITIVE_SECONDS + 1
    flood = [asyncio.create_task(ring.verify(keys.generate()[1])) for _ in range(20)]
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        assert await ring.verify(secret) == principal
    is_free.set()
    await asyncio.gather(*flood)


def verify(ring: KeyRing, secret: str) -> Principal | Refusal:
    return async_to_sync(ring.verify)(secret)


def test_stored_keys(owner: Tenant, stranger: Tenant) -> None:
    ring = KeyRing()
    mine, theirs = verify(ring, owner.secret), verify(ring, stranger.secret)
    assert isinstance(mine, Principal)
    assert isinstance(theirs, Principal)
    assert (mine.key_id, mine.organization_id) == (owner.key.pk, owner.organization.pk)
    assert theirs.organization_id != mine.organization_id
    with CaptureQueriesContext(
        connection,
    ) as queries:
        verify(ring, owner.secret)
    assert len(queries) == 0


def test_expiry_is_checked_on_each_use(owner: Tenant) -> None:
    now = timezone.now()
    ApiKey.objects.filter(pk=owner.key.pk).update(expires_at=now + timedelta(seconds=10))
    ring = KeyRing(now=lambda: now)
    assert isinstance(verify(ring, owner.secret), Principal)
    now += timedelta(seconds=10)
    assert verify(ring, owner.secret) is Refusal.EXPIRED


def test_revoked_keys(owner: Tenant) -> None:
    assert changes.revoke(owner.key, SERVICE)
    assert not changes.revoke(owner.key, SERVICE)
    assert verify(KeyRing(), owner.secret) is Refusal.REVOKED


def test_only_the_digest_is_stored(owner: Tenant) -> None:
    row = ApiKey.objects.filter(pk=owner.key.pk).values().get()
    assert owner.secret not in str(row)
    assert row["digest"] == keys.digest(owner.secret, settings.KEY_PEPPER)


def test_model_restrictions() -> None:
    everything = Principal(1, 1, "a", (), None)
    one = Principal(1, 1, "a", ("x",), None)
    assert everything.may_use("x")
    assert one.may_use("x")
    assert not one.may_use("y")


def test_an_unreachable_redis_is_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    changes.announce_change()
    assert "could not announce a changed API key" in caplog.text


@pytest.mark.integration
def test_changes_are_announced(
    valkey: PrivateValkey, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "REDIS_URL", valkey.url)
    for _ in range(3):
        changes.announce_change()
    assert redis_client.xlen(f"{settings.REDIS_PREFIX}keys") == 3
