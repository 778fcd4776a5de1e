"""Registers, replaces and removes the LoRA adapters of organizations.

Every change is audited, and announced to all web processes once it is committed. A version that a
worker tries out has the number 0 and counts as retired: its bytes count, no request can name it,
and it is deleted like other retired versions if it is never registered.
"""

import logging
from collections.abc import Collection
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Max, Sum
from django.utils import timezone

from completions.accounts import audit
from completions.accounts.audit import Actor
from completions.accounts.changes import announce_change
from completions.accounts.keys import POSITIVE_SECONDS
from completions.catalog.adapter_store import delete_left, mark_retired
from completions.models import (
    UNFINISHED,
    Adapter,
    AuditAction,
    Batch,
    Job,
    JobStatus,
    Organization,
)
from completions.models.organizations import lock_organization

logger = logging.getLogger(__name__)

_LATE = timedelta(seconds=POSITIVE_SECONDS + 60.0)
"""How long after a retirement a web process may still admit jobs with the version: its cache of
keys may not have been cleared."""


class AdapterTakenError(Exception):
    """An adapter of this name is loaded already."""


class TooManyAdaptersError(Exception):
    """The organization has as many adapters as it may have."""


class AdapterBytesError(Exception):
    """The weights of the organization's adapters would exceed MAX_STORED_ADAPTER_BYTES. The
    message has the sizes."""


def reserve(adapter: Adapter) -> None:
    """Save a version that is to be tried out, so that its bytes count. Raises AdapterBytesError."""
    with lock_organization(adapter.organization_id):
        owned = Adapter.objects.filter(organization_id=adapter.organization_id)
        others = owned.exclude(digest=adapter.digest).order_by().values("digest", "bytes")
        stored = others.distinct().aggregate(sum=Sum("bytes"))["sum"] or 0
        if stored + adapter.bytes > settings.MAX_STORED_ADAPTER_BYTES:
            raise AdapterBytesError(
                f"it has {adapter.bytes} bytes, and your organization's other adapters {stored} "
                f"of {settings.MAX_STORED_ADAPTER_BYTES}; unload some first. Those that are "
                "unloaded, replaced or could not be loaded count until no job can need them"
            )
        adapter.version, adapter.retired_at = 0, timezone.now()
        adapter.save()


def register(adapter: Adapter, actor: Actor, *, replaces: bool) -> None:
    """Let new requests that name the adapter get this version, which is reserved. Raises
    AdapterTakenError unless it `replaces` an earlier one, and TooManyAdaptersError."""
    with lock_organization(adapter.organization_id):
        owned = Adapter.objects.filter(organization_id=adapter.organization_id)
        versions = owned.filter(model=adapter.model, name=adapter.name)
        current = versions.active().first()
        if current is not None and not replaces:
            raise AdapterTakenError
        if current is not None:
            _retire(current)
        elif owned.active().count() >= settings.MAX_ADAPTERS:
            raise TooManyAdaptersError
        newest: int = versions.aggregate(newest=Max("version"))["newest"]
        adapter.version, adapter.retired_at = newest + 1, None
        adapter.save(force_update=True)
        _record(adapter, [current.digest if current else None, adapter.digest], actor)
    _mark({adapter.digest, *([current.digest] if current else [])})


def unregister(adapter: Adapter, actor: Actor) -> bool:
    """Let no new request get an adapter. Jobs that have it keep it. Returns False if another
    request was faster."""
    with lock_organization(adapter.organization_id):
        adapter = Adapter.objects.get(pk=adapter.pk)
        if adapter.retired_at is not None:
            return False
        _retire(adapter)
        _record(adapter, [adapter.digest, None], actor)
    _mark({adapter.digest})
    return True


def prune(now: datetime) -> int:
    """Delete versions that no job can need any more, and their files. Returns the number of
    versions."""
    retired = Adapter.objects.exclude(retired_at=None)
    ended = now - _LATE - timedelta(seconds=settings.REQUEST_TIMEOUT)
    deleted = 0
    for adapter in retired.filter(retired_at__lte=ended):
        if not _may_be_needed(adapter):
            adapter.delete()
            deleted += 1
    digests = set(Adapter.objects.values_list("digest", flat=True))
    _mark(digests)
    delete_left(settings.ADAPTER_STORE, digests)
    return deleted


def _may_be_needed(adapter: Adapter) -> bool:
    """Return whether work that was admitted before its retirement has not ended."""
    assert adapter.retired_at is not None
    if adapter.version == 0:  # only the job that tried it out had it
        return False
    admitted = {
        "organization_id": adapter.organization_id,
        "created_at__lte": adapter.retired_at + _LATE,
    }
    return (
        Batch.objects.filter(status__in=UNFINISHED, **admitted).exists()
        or Job.objects.filter(status=JobStatus.QUEUED, **admitted).exists()
    )


def _retire(adapter: Adapter) -> None:
    adapter.retired_at = timezone.now()
    adapter.save(update_fields=["retired_at"])


def _record(adapter: Adapter, change: list[str | None], actor: Actor) -> None:
    organization = Organization.objects.get(pk=adapter.organization_id)
    what = {f"adapter {adapter.model}:{adapter.name}": change}
    audit.record(actor, AuditAction.CHANGED, organization, what)
    transaction.on_commit(announce_change)


def _mark(digests: Collection[str]) -> None:
    """Tell workers which versions are retired. The next run of `prune` repeats it."""
    active = set(
        Adapter.objects.active().filter(digest__in=digests).values_list("digest", flat=True)
    )
    try:
        mark_retired(settings.ADAPTER_STORE, active, digests)
    except OSError as error:
        logger.warning("cannot mark retired adapters: %s", error)
