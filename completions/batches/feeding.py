"""Sends lines to the queue in windows, so that live requests never wait behind a file."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

import redis
from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from completions.batches import lines, states
from completions.catalog import model_files
from completions.jobs.limits import UnseededError
from completions.jobs.operate import is_nearly_full
from completions.jobs.record import Keys, NewJob
from completions.jobs.scripts import Scripts
from completions.jobs.submit import FIRST_CHECK, LINES_PER_SEQUENCE, submit_kept
from completions.jobs.workers import watch_workers
from completions.models import Batch, BatchLine, BatchStatus, LineState
from completions.models.parts import parts
from completions.usage import budgets

logger = logging.getLogger(__name__)

Publish = Callable[[str, str, int], None]
"""Job id, model, priority. Raises kombu's OperationalError when the broker is gone."""

_AT_ONCE = 500
_ATTEMPTS = 3
"""Attempts to send lines: the budgets of the key and of the organization may need seeding."""
BUDGET_PAUSE = 20.0
"""Seconds until lines that exceeded a budget are tried again."""
_resting: dict[str, float] = {}
"""Batches whose budget is spent, with the time.monotonic() of their next attempt."""


def feed(client: redis.Redis, prefix: str, publish: Publish) -> int:
    """Send as many lines as the windows of their models have room for. Returns how many.

    Organizations with waiting lines share a window equally. Within an organization the oldest batch
    goes first. A line is marked as sent before Redis has it; `restore_lost` undoes the mark if the
    line never arrives.
    """
    if is_nearly_full(cast("dict[str, int]", client.info("memory"))):
        return 0
    fed = 0
    workers = _live_workers(client, prefix)
    for model, batches in _fed_by_model().items():
        entry = model_files.served_models().get(model)
        if entry is None:
            continue  # waits until models.toml has the model again, or expires
        window = LINES_PER_SEQUENCE * entry.max_num_seqs * max(1, workers[model])
        share = max(1, window // len({batch.organization_id for batch in batches}))
        room = dict.fromkeys((batch.organization_id for batch in batches), share)
        for organization_id, sent in _sent(model).items():
            room[organization_id] = room.get(organization_id, share) - sent
        for batch in batches:
            count = _send(client, prefix, publish, batch, room[batch.organization_id])
            room[batch.organization_id] -= count
            fed += count
    return fed


def _fed_by_model() -> dict[str, list[Batch]]:
    waiting = BatchLine.objects.filter(batch=OuterRef("pk"), state=LineState.WAITING)
    fed = Batch.objects.filter(
        Exists(waiting), status=BatchStatus.IN_PROGRESS, organization__suspended_at=None
    )
    by_model: dict[str, list[Batch]] = defaultdict(list)
    owned = fed.select_related("api_key__organization", "organization")
    for batch in owned.order_by("created_at", "id"):
        by_model[batch.model].append(batch)
    return by_model


def _sent(model: str) -> dict[int, int]:
    """Count the lines of each organization that are queued or running."""
    running = Count("lines", filter=Q(lines__state=LineState.SENT))
    unended = Batch.objects.filter(model=model, status__in=_WITH_SENT_LINES)
    counts = unended.order_by().values("organization_id").annotate(sent=running)
    return {row["organization_id"]: row["sent"] for row in counts}


_WITH_SENT_LINES = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


def _send(client: redis.Redis, prefix: str, publish: Publish, batch: Batch, most: int) -> int:
    if most <= 0 or time.monotonic() < _resting.get(batch.id, 0):
        return 0
    _resting.pop(batch.id, None)
    waiting = batch.lines.filter(state=LineState.WAITING).order_by("prefix", "number")
    taken = _take(list(waiting[:most]))
    jobs = [lines.job_of(batch, line) for line in taken]
    refused: list[BatchLine] = []
    for part in parts(list(zip(taken, jobs, strict=True)), _AT_ONCE):
        replies = _submitted(client, prefix, [job for _, job in part])
        refused += [
            line
            for (line, _), reply in zip(part, replies, strict=True)
            if not isinstance(reply, bool)
        ]
    if refused:
        _wait(batch, refused)
    numbers = {line.number for line in refused}
    for line, job in zip(taken, jobs, strict=True):
        if line.number not in numbers:
            publish(job.id, job.model, job.priority)
    return len(jobs) - len(refused)


def _submitted(client: redis.Redis, prefix: str, jobs: Sequence[NewJob]) -> list[Any]:
    """Submit jobs and return one reply for each. Seeds the budgets that Redis lacks."""
    for _ in range(_ATTEMPTS):
        replies = submit_kept(client, prefix, jobs, FIRST_CHECK)
        unseeded = {reply.scope for reply in replies if isinstance(reply, UnseededError)}
        if not unseeded:
            break
        for scope in sorted(unseeded):
            budgets.seed_from(client, prefix, scope)
        # Jobs that the first attempt stored now reply False, and are published as well.
    return list(replies)


def _wait(batch: Batch, refused: Sequence[BatchLine]) -> None:
    """Return lines that exceeded a budget to waiting, and pause their batch."""
    rows = BatchLine.objects.filter(id__in=[line.id for line in refused], state=LineState.SENT)
    rows.update(state=LineState.WAITING)
    _resting[batch.id] = time.monotonic() + BUDGET_PAUSE
    logger.info("%s waits: a budget of its key or organization is spent", batch.id)


def _take(found: list[BatchLine]) -> list[BatchLine]:
    """Mark waiting lines as sent. Returns the lines to send.

    A feeder that stalled until it lost its lock may compete with another one here. Lines that the
    other sent and that have ended must not run again. Lines that have not ended may be sent twice,
    because Redis ignores the second submission.
    """
    ids = [line.id for line in found]
    waiting = BatchLine.objects.filter(id__in=ids, state=LineState.WAITING)
    if waiting.update(state=LineState.SENT) == len(ids):
        return found
    sent = BatchLine.objects.filter(id__in=ids, state=LineState.SENT)
    unanswered = set(sent.values_list("id", flat=True))
    return [line for line in found if line.id in unanswered]


def restore_lost(client: redis.Redis, prefix: str) -> int:
    """Return sent lines that Redis does not have to waiting. Returns how many.

    Must not run concurrently with `feed`, which marks lines as sent before it sends them.
    """
    restored, keys = 0, Keys(prefix)
    sent = BatchLine.objects.filter(batch__status__in=_WITH_SENT_LINES, state=LineState.SENT)
    for part in parts(_with_batches(sent), _AT_ONCE):
        pipeline = client.pipeline(transaction=False)
        for line in part:
            pipeline.exists(keys.job(line.batch.job_id(line.number)))
        known = pipeline.execute()
        lost = [line.id for line, there in zip(part, known, strict=True) if not there]
        # A result may have been stored since the query.
        unended = BatchLine.objects.filter(id__in=lost, state=LineState.SENT)
        restored += unended.update(state=LineState.WAITING) if lost else 0
    return restored


def cancel_closing(client: redis.Redis, prefix: str) -> int:
    """Cancel the running lines of closing batches. Returns how many."""
    cancelled = 0
    scripts = Scripts(client, prefix)
    for part in parts(_with_batches(states.running_lines_of_closing()), _AT_ONCE):
        scripts.call_all([("cancel", [line.batch.job_id(line.number)]) for line in part])
        cancelled += len(part)
    return cancelled


def _with_batches(found: QuerySet[BatchLine]) -> list[BatchLine]:
    """Load sent lines without their jobs. The windows bound their number."""
    return list(found.select_related("batch").only("number", "batch__job_prefix"))


def _live_workers(client: redis.Redis, prefix: str) -> Counter[str]:
    """Count the live workers that take jobs, by model."""
    return Counter(worker.model for worker in watch_workers(client, prefix) if worker.accepting)
