"""Creates, changes, rotates and revokes organizations and API keys.

Every change is audited, and announced to all web processes once it is committed.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from redis.exceptions import RedisError

from completions.accounts import audit
from completions.accounts.audit import Actor, Audited
from completions.accounts.keys import POSITIVE_SECONDS, digest, generate
from completions.jobs.connection import connect
from completions.jobs.sharding.shards import Layout
from completions.jobs.store import Keys
from completions.models import ApiKey, AuditAction, Organization

logger = logging.getLogger(__name__)

_ANNOUNCE_TIMEOUT = 1.0


def find_organization(name: str, actor: Actor) -> Organization:
    """Return the organization with this name; create it if it does not exist."""
    with transaction.atomic():
        organization, made = Organization.objects.get_or_create(name=name)
        if made:
            audit.record(
                actor, AuditAction.CREATED, organization, audit.list_initial_values(organization)
            )
    return organization


def create(
    organization: Organization, name: str, actor: Actor = audit.SERVICE, **fields: object
) -> tuple[ApiKey, str]:
    """Create a key with these fields of ApiKey. Returns (key, secret)."""
    key = ApiKey(organization=organization, name=name, **fields)
    return key, issue(key, actor)


def issue(key: ApiKey, actor: Actor) -> str:
    """Generate a secret for an unsaved key and save the key. The secret cannot be shown again."""
    key.public_id, secret = generate()
    key.digest = digest(secret, settings.KEY_PEPPER)
    with transaction.atomic():
        key.save(force_insert=True)
        audit.record(actor, AuditAction.CREATED, key, audit.list_initial_values(key))
    return secret


def rotate(key: ApiKey, grace: timedelta, actor: Actor) -> str:
    """Give a key a new secret and return it.

    The current secret keeps working for `grace`; an older one stops working now.
    """
    with transaction.atomic():
        key = ApiKey.objects.select_for_update().get(pk=key.pk)
        before = audit.read_state(key)
        key.previous_public_id, key.previous_digest = key.public_id, key.digest
        key.previous_expires_at = timezone.now() + grace
        key.public_id, secret = generate()
        key.digest = digest(secret, settings.KEY_PEPPER)
        key.save(update_fields=_SECRETS)
        changes = audit.diff_states(before, audit.read_state(key))
        audit.record(actor, AuditAction.ROTATED, key, changes)
        transaction.on_commit(announce_change)
    return secret


_SECRETS = ["public_id", "digest", "previous_public_id", "previous_digest", "previous_expires_at"]


def revoke(key: ApiKey, actor: Actor) -> bool:
    """Revoke a key permanently. Returns False if it was already revoked."""
    now = timezone.now()
    with transaction.atomic():
        changed = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=now)
        if changed:
            audit.record(actor, AuditAction.REVOKED, key)
            transaction.on_commit(announce_change)
    return bool(changed)


def change(thing: Audited, fields: Sequence[str], actor: Actor) -> None:
    """Save these fields of an organization or key. Audits nothing if none has changed."""
    with transaction.atomic():
        stored = type(thing)._default_manager.select_for_update().get(pk=thing.pk)
        thing.save(update_fields=fields)
        changes = audit.diff_states(audit.read_state(stored), audit.read_state(thing), fields)
        if changes:
            audit.record(actor, AuditAction.CHANGED, thing, changes)
            transaction.on_commit(announce_change)


def add(organization: Organization, actor: Actor) -> None:
    with transaction.atomic():
        organization.save(force_insert=True)
        audit.record(
            actor, AuditAction.CREATED, organization, audit.list_initial_values(organization)
        )


def delete(organization: Organization, actor: Actor) -> None:
    """Delete an organization with everything it owns, except its audit trail."""
    with transaction.atomic():
        audit.record(actor, AuditAction.DELETED, organization)
        organization.delete()
        transaction.on_commit(announce_change)


def announce_change() -> None:
    """Clear the key cache of every web process. Never raises: caches expire by themselves."""
    for address in Layout.read(settings).shards:  # a reader of one shard that hears of it is enough
        try:
            with connect(address.url, timeout=_ANNOUNCE_TIMEOUT) as client:
                client.xadd(Keys(address.prefix).keys, {"changed": "1"}, maxlen=100)
        except RedisError as error:
            logger.warning(
                "could not announce a changed API key (%s); web processes notice it within %.0f s",
                error,
                POSITIVE_SECONDS,
            )
