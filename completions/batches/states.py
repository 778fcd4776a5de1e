"""The transitions between a batch's statuses. Each is one conditional UPDATE."""

from datetime import datetime

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet, Sum, Window
from django.db.models.functions import RowNumber

from completions.batches.input_lines import LineError
from completions.batches.planning import outlook
from completions.jobs.sharding.shards import name_shard
from completions.models import (
    OPEN_LINES,
    UNFINISHED,
    ApiKey,
    Batch,
    BatchLine,
    BatchStatus,
    File,
    LineState,
)
from completions.models.organizations import lock_organization
from completions.models.timed_ids import read_time

_RUNNING = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
_CLOSING = (BatchStatus.CANCELLING, BatchStatus.FINALIZING)


def set_origin(batch: Batch, file: File, owner: tuple[int, int], job_prefix: str) -> None:
    """Set the owner (organization id, key id), file, prefix and times of a new batch."""
    batch.id = name_shard(batch.id, owner[0], settings.SHARDS)
    batch.created_at = read_time(batch.id) or batch.created_at
    batch.organization_id, batch.api_key_id = owner
    batch.input_file_id = file.id
    batch.job_prefix = job_prefix
    batch.expires_at = batch.created_at + batch.window


def begin(batch: Batch, now: datetime) -> bool:
    """Start a valid batch. Returns False if it was cancelled or expired in the meantime."""
    validating = Batch.objects.filter(id=batch.id, status=BatchStatus.VALIDATING)
    return bool(
        validating.update(
            status=BatchStatus.IN_PROGRESS,
            in_progress_at=now,
            model=batch.model,
            by_model=batch.by_model,
            total=batch.total,
            failed=batch.failed,
            counted_fields=batch.counted_fields,
            plan=batch.plan,
            pilot=batch.pilot,
            forecast=batch.forecast,
            promise=batch.promise,
            summary=batch.summary,
            enqueued_tokens=batch.enqueued_tokens,
        )
    )


def start(batch_id: str, now: datetime) -> bool:
    """Run the lines of a held batch after its pilot, with the forecast that they have now. Returns
    False if the batch is not held."""
    held = Batch.objects.filter(id=batch_id, held=True, status__in=_RUNNING)
    organization_id = held.values_list("organization_id", flat=True).first()
    if organization_id is None:
        return False
    with lock_organization(organization_id):
        batch = held.first()
        if batch is None:
            return False
        forecast = outlook.forecast_valid(batch, now)
        batch.promise = forecast and forecast.to_json(now)
        # The speed before the pause says nothing now.
        return bool(held.update(held=False, pace=[], promise=batch.promise))


def cancel(batch_id: str, now: datetime) -> bool:
    """Stop sending lines. Returns False if the batch has ended or is about to."""
    return bool(_cancel(Batch.objects.filter(id=batch_id), now))


def cancel_revoked(now: datetime) -> int:
    """Cancel the batches of revoked keys. Returns their number."""
    return _cancel(Batch.objects.filter(api_key__revoked_at__isnull=False), now)


def _cancel(batches: QuerySet[Batch], now: datetime) -> int:
    return batches.filter(status__in=_RUNNING).update(
        status=BatchStatus.CANCELLING, outcome=BatchStatus.CANCELLED, cancelling_at=now
    )


def expire(now: datetime) -> int:
    """Close the batches whose completion window has ended. Returns their number."""
    return Batch.objects.filter(status__in=_RUNNING, expires_at__lte=now).update(
        status=BatchStatus.FINALIZING, outcome=BatchStatus.EXPIRED, finalizing_at=now
    )


def finalize_drained(now: datetime) -> int:
    """Close the batches whose lines have all ended. Returns their number."""
    unended = BatchLine.objects.filter(batch=OuterRef("pk"), state__in=OPEN_LINES)
    drained = Batch.objects.filter(~Exists(unended), status=BatchStatus.IN_PROGRESS)
    return drained.update(status=BatchStatus.FINALIZING, finalizing_at=now)


def can_any_advance() -> bool:
    """Return whether an unfinished batch may advance by itself.

    A held batch whose pilot has ended waits for its owner.
    """
    piloted = Q(state=LineState.WAITING, position__lt=OuterRef("pilot"))
    running = BatchLine.objects.filter(Q(state=LineState.SENT) | piloted, batch=OuterRef("pk"))
    waits = Q(status=BatchStatus.IN_PROGRESS, held=True) & ~Exists(running)
    return Batch.objects.filter(~waits, status__in=UNFINISHED).exists()


def list_unvalidated() -> list[str]:
    """Return the batches to validate: the oldest of each organization, then the second oldest."""
    turn = Window(RowNumber(), partition_by=["organization_id"], order_by=["created_at"])
    validating = Batch.objects.filter(status=BatchStatus.VALIDATING).annotate(turn=turn)
    return list(validating.order_by("turn", "created_at").values_list("id", flat=True))


def list_unwritten() -> list[str]:
    """Return the ids of closing batches without running lines."""
    running = BatchLine.objects.filter(batch=OuterRef("pk"), state=LineState.SENT)
    closing = Batch.objects.filter(~Exists(running), status__in=_CLOSING)
    return list(closing.order_by("created_at").values_list("id", flat=True))


def find_lines_to_cancel() -> QuerySet[BatchLine]:
    return BatchLine.objects.filter(batch__status__in=_CLOSING, state=LineState.SENT)


def require_room(batch: Batch, key: ApiKey) -> None:
    """Check max_enqueued_tokens of the key and its organization. Raises LineError."""
    unended = Batch.objects.filter(status__in=UNFINISHED).exclude(id=batch.id)
    for owner, batches in (
        (key, unended.filter(api_key_id=key.pk)),
        (key.organization, unended.filter(organization_id=key.organization_id)),
    ):
        most = owner.max_enqueued_tokens
        if most is None:
            continue
        enqueued = batches.aggregate(tokens=Sum("enqueued_tokens"))["tokens"] or 0
        if enqueued + batch.enqueued_tokens > most:
            whose = "this API key" if owner is key else "your organization"
            raise LineError(
                "token_limit_exceeded",
                f"Enqueued token limit reached: the prompts of {whose}'s batches may hold {most} "
                f"tokens until they have ended; there are {enqueued}, and this file has "
                f"{batch.enqueued_tokens}. Try again once some of them have ended.",
            )
