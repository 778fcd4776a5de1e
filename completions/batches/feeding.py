"""Sends lines to the queue in windows, so that live requests never wait behind a file."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet

from completions.batches import lines, states
from completions.catalog import model_files
from completions.jobs.limits import UnseededError
from completions.jobs.operate import is_nearly_full
from completions.jobs.reconcile import missing
from completions.jobs.record import NewJob
from completions.jobs.store import SyncStore
from completions.jobs.submit import FIRST_CHECK, LINES_PER_SEQUENCE, submit_kept
from completions.jobs.workers import watch_workers
from completions.models import Batch, BatchLine, BatchStatus, LineState
from completions.models.parts import parts
from completions.usage import budgets

logger = logging.getLogger(__name__)

Publish = Callable[[str, str, int], None]
"""Job id, model, priority. Raises kombu's OperationalError when the broker is unreachable."""

_AT_ONCE = 500
_ATTEMPTS = 3
"""Attempts to send lines. Retries seed the budgets of the key and the organization in Redis."""
BUDGET_PAUSE = 20.0
"""Seconds until lines that exceeded a budget are tried again."""
_resting: dict[str, float] = {}
"""Batches whose budget is spent, by the time.monotonic() of their next attempt."""


def feed(store: SyncStore, publish: Publish) -> int:
    """Send as many lines as the windows of their models have room for. Returns their number.

    Organizations with waiting lines share a window equally. Within an organization the oldest batch
    goes first. A line is marked as sent before Redis has it; `restore_lost` undoes the mark if the
    line never arrives.
    """
    if is_nearly_full(cast("dict[str, int]", store.client.info("memory"))):
        return 0
    fed = 0
    accepting = [each for each in watch_workers(store) if each.accepting]
    for model, batches in _fed_by_model().items():
        entry = model_files.served_models().get(model)
        if entry is None:
            continue  # waits until models.toml has the model again, or expires
        slots = sum(each.slots or entry.slots for each in accepting if each.model == model)
        window = LINES_PER_SEQUENCE * (slots or entry.slots)
        share = max(1, window // len({batch.organization_id for batch in batches}))
        room = dict.fromkeys((batch.organization_id for batch in batches), share)
        for organization_id, sent in _sent(model).items():
            room[organization_id] = room.get(organization_id, share) - sent
        for batch in batches:
            count = _send(store, publish, batch, room[batch.organization_id])
            room[batch.organization_id] -= count
            fed += count
    return fed


def _fed_by_model() -> dict[str, list[Batch]]:
    sendable = Q(batch__held=False) | Q(position__lt=F("batch__pilot"))
    waiting = BatchLine.objects.filter(sendable, batch=OuterRef("pk"), state=LineState.WAITING)
    fed = Batch.objects.filter(
        Exists(waiting), status=BatchStatus.IN_PROGRESS, organization__suspended_at=None
    )
    by_model: dict[str, list[Batch]] = defaultdict(list)
    owned = fed.select_related("api_key__organization", "organization")
    for batch in owned.order_by("created_at", "id"):
        by_model[batch.model].append(batch)
    return by_model


def _sent(model: str) -> dict[int, int]:
    running = Count("lines", filter=Q(lines__state=LineState.SENT))
    unended = Batch.objects.filter(model=model, status__in=_WITH_SENT_LINES)
    counts = unended.order_by().values("organization_id").annotate(sent=running)
    return {row["organization_id"]: row["sent"] for row in counts}


_WITH_SENT_LINES = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


def _send(store: SyncStore, publish: Publish, batch: Batch, most: int) -> int:
    if most <= 0 or time.monotonic() < _resting.get(batch.id, 0):
        return 0
    _resting.pop(batch.id, None)
    waiting = batch.lines.filter(state=LineState.WAITING).order_by("position", "number")
    if batch.held:
        waiting = waiting.filter(position__lt=batch.pilot)
    taken = take(list(waiting[:most]))
    admitted, refused = [], []
    for part in parts(taken, _AT_ONCE):
        jobs = [lines.job_of(batch, line) for line in part]
        replies = _submitted(store, jobs)
        admitted += [j for j, reply in zip(jobs, replies, strict=True) if isinstance(reply, bool)]
        refused += [
            line.pk
            for line, reply in zip(part, replies, strict=True)
            if not isinstance(reply, bool)
        ]
    if refused:
        _wait(batch, refused)
    for job in admitted:
        publish(job.id, job.model, job.priority)
    return len(admitted)


def _submitted(store: SyncStore, jobs: Sequence[NewJob]) -> list[Any]:
    """Submit jobs and return one reply for each. Seeds the budgets that Redis lacks."""
    for _ in range(_ATTEMPTS):
        replies = submit_kept(store, jobs, FIRST_CHECK)
        unseeded = {reply.scope for reply in replies if isinstance(reply, UnseededError)}
        if not unseeded:
            break
        for scope in sorted(unseeded):
            budgets.seed_from(store, scope)
        # Redis replies False for jobs that the first attempt stored; they are published too.
    return list(replies)


def _wait(batch: Batch, line_ids: Sequence[int]) -> None:
    """Mark lines that exceeded a budget as waiting again, and pause their batch."""
    rows = BatchLine.objects.filter(id__in=line_ids, state=LineState.SENT)
    rows.update(state=LineState.WAITING)
    _resting[batch.id] = time.monotonic() + BUDGET_PAUSE
    logger.info("%s waits: a budget of its key or organization is spent", batch.id)


def take(found: list[BatchLine]) -> list[BatchLine]:
    """Mark waiting lines as sent. Returns the lines to send.

    A feeder that stalled until it lost its lock may compete with another one here. Lines that the
    other one sent and that have ended must not run again. Lines that have not ended may be sent
    twice, because Redis ignores the second submission.
    """
    ids = [line.id for line in found]
    waiting = BatchLine.objects.filter(id__in=ids, state=LineState.WAITING)
    if waiting.update(state=LineState.SENT) == len(ids):
        return found
    sent = BatchLine.objects.filter(id__in=ids, state=LineState.SENT)
    unanswered = set(sent.values_list("id", flat=True))
    return [line for line in found if line.id in unanswered]


def restore_lost(store: SyncStore) -> int:
    """Mark sent lines that are missing from Redis as waiting again. Returns their number.

    Must not run concurrently with `feed`, which marks lines as sent before it sends them.
    """
    restored = 0
    sent = BatchLine.objects.filter(batch__status__in=_WITH_SENT_LINES, state=LineState.SENT)
    for part in parts(_with_batches(sent), _AT_ONCE):
        by_job = {line.batch.job_id(line.number): line.id for line in part}
        lost = [by_job[job_id] for job_id in missing(store, list(by_job))]
        # A result may have been stored since the query.
        unended = BatchLine.objects.filter(id__in=lost, state=LineState.SENT)
        restored += unended.update(state=LineState.WAITING) if lost else 0
    return restored


def cancel_closing(store: SyncStore) -> int:
    """Cancel the running lines of closing batches. Returns their number."""
    cancelled = 0
    for part in parts(_with_batches(states.running_lines_of_closing()), _AT_ONCE):
        store.call_all([("cancel", [line.batch.job_id(line.number)]) for line in part])
        cancelled += len(part)
    return cancelled


def _with_batches(found: QuerySet[BatchLine]) -> list[BatchLine]:
    """Load sent lines without their jobs. The send windows limit their number."""
    return list(found.select_related("batch").only("number", "batch__job_prefix"))
