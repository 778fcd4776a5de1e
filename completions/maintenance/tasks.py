"""Periodic tasks of the background worker. Each takes a lock, so several of these workers may
run."""

import atexit
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from itertools import chain
from typing import Any

from celery import shared_task
from django.conf import settings
from django.utils import timezone
from kombu.exceptions import OperationalError

from completions.accounts import last_use
from completions.batches import feeding, progress, states, validation, writing
from completions.batches.planning.cache import CacheSize, find_smallest_cache
from completions.grammars import Validator
from completions.jobs import durable
from completions.jobs.ended import has_ended_jobs
from completions.jobs.message import dispatch
from completions.jobs.rids import BatchRids
from completions.jobs.sharding.resharding import require_layout
from completions.jobs.sharding.shards import Layout, SyncShards, run_each
from completions.jobs.workers import Builds, list_all_workers
from completions.maintenance import budget_warnings, load, pruning, settlement
from completions.maintenance.locks import Lease, lease
from completions.maintenance.reconcile import correct_byte_sums
from completions.maintenance.reconcile import reconcile as find_lost
from completions.models import UNFINISHED, Batch, BatchStatus
from completions.requests.validation import make_validator
from completions.webhooks import deliveries, events

logger = logging.getLogger(__name__)

FEED_SECONDS = 0.9
"""Duration of one run of the feeder, which the clock starts every second."""
FEED_PAUSE = 0.05
"""Seconds between two attempts while the windows are full."""
HANDED_OVER_FOR = 5.0
"""Seconds after which a message about a batch expires. The next run sends another."""

MAX_VALIDATIONS = 2
"""Batches validated at the same time, so that the background worker has threads for other tasks."""


def _task(run: Callable[..., object]) -> Any:
    """Register a task. Its name in messages is that of version 0.1.0, so that background workers of
    both versions take each other's."""
    return shared_task(name=f"completions.tasks.{run.__name__}")(run)


@cache
def _shards() -> SyncShards:
    layout = Layout.read(settings)
    shards = layout.connect()
    require_layout(layout, shards)
    return shards


@cache
def _get_builds() -> Builds:
    return Builds()


@cache
def _get_validator() -> Validator:
    validator = make_validator()
    atexit.register(validator.close)
    return validator


def _acquire_lock(name: str) -> AbstractContextManager[Lease | None]:
    """Acquire a lock that only one worker can hold."""
    return lease(_shards().central, name)


@contextmanager
def _acquire_place(name: str, places: int) -> Iterator[Lease | None]:
    """Acquire one of `places` locks. Yields None if all are held."""
    for number in range(places):
        with _acquire_lock(f"{name}:{number}") as mine:
            if mine:
                yield mine
                return
    yield None


@_task
def settle() -> int:
    """Move usage and results of ended jobs to SQL. Returns the number of jobs."""
    if not any(run_each(_shards(), has_ended_jobs)):  # cheap, as in most runs
        return 0
    with _acquire_lock("settle") as mine:
        if not mine:
            return 0
        return sum(run_each(_shards(), partial(settlement.settle, builds=_get_builds())))


@_task
def reconcile() -> None:
    """Publish jobs again that the broker, a worker or Redis has lost."""
    with _acquire_lock("reconcile") as mine:
        if not mine:
            return
        restored = durable.resubmit_lost(_shards(), timezone.now())
        lost = list(chain.from_iterable(run_each(_shards(), find_lost)))
        for job in lost:
            try:
                dispatch(job.job_id, job.model, job.priority)
            except OperationalError as error:
                logger.warning("cannot publish %s again: %s", job.job_id, error)
                return
            logger.info(
                "job %s is published again: its worker was lost, or none has taken it",
                job.job_id,
                extra={"job_id": job.job_id, "request_id": job.request_id},
            )
        if lost or restored:
            logger.info("published %d jobs again, %d of them from SQL", len(lost), restored)


@_task
def recount() -> None:
    """Correct what the limits of the queue count, should it ever differ from the open jobs."""
    with _acquire_lock("recount") as mine:
        if mine and (wrong := sum(run_each(_shards(), correct_byte_sums))):
            logger.warning("%d sums of the bytes of open jobs were wrong; corrected", wrong)


@_task
def advance_batches() -> None:
    """Advance all batches: store results, send lines, and start what is due next."""
    if not Batch.objects.filter(status__in=UNFINISHED).exists():
        return
    with _acquire_lock("advance_batches") as mine:
        if not mine:
            return
        _hand_over()
        until = time.monotonic() + FEED_SECONDS
        while mine.alive():
            moved = settle() + feeding.feed(_shards(), dispatch)
            if states.finalize_drained(timezone.now()):
                _write_closing()
            if time.monotonic() > until or not states.can_any_advance():
                break
            if not moved:
                time.sleep(FEED_PAUSE)


def _hand_over() -> None:
    """Do what is due for whole batches. Long work is sent to other tasks."""
    now = timezone.now()
    states.expire(now)
    states.cancel_revoked(now)
    # Safe under the feeder's lock: no line is between being marked and being submitted.
    if waiting := feeding.restore_lost(_shards()):
        logger.info("%d lines of batches that Redis has lost wait again", waiting)
    feeding.cancel_closing(_shards())
    progress.store_samples(now)
    progress.store_outlooks(now)
    for batch_id in states.list_unvalidated():
        validate_batch.apply_async((batch_id,), expires=HANDED_OVER_FOR)
    _write_closing()


def _write_closing() -> None:
    for batch_id in states.list_unwritten():
        write_batch.apply_async((batch_id,), expires=HANDED_OVER_FOR)


@_task
def validate_batch(batch_id: str) -> None:
    """Validate a batch's file.

    One batch per organization is validated at a time, so that no organization delays the others,
    and at most MAX_VALIDATIONS in all.
    """
    validating = Batch.objects.filter(id=batch_id, status=BatchStatus.VALIDATING)
    owner = validating.values_list("organization_id", flat=True).first()
    if owner is None:
        return
    with (
        _acquire_lock(f"validate:{owner}") as mine,
        _acquire_place("validating", MAX_VALIDATIONS) as place,
    ):
        batch = validating.first()
        if not mine or not place or batch is None:
            return

        def alive() -> bool:
            return mine.alive() and place.alive()

        try:
            former = batch.make_job_prefix(batch.resubmission_of) if batch.resubmission_of else ""
            rids = BatchRids(_shards().central, batch.api_key_id, former)
            validation.validate(batch, _get_validator(), alive, rids, _read_cache_size)
        except validation.InterruptedValidationError:
            logger.warning("another worker is validating %s", batch_id)


def _read_cache_size(model: str) -> CacheSize | None:
    return find_smallest_cache(list_all_workers(_shards()), model)


@_task
def write_batch(batch_id: str) -> None:
    with _acquire_lock(f"write:{batch_id}") as mine:
        batch = Batch.objects.filter(id=batch_id, status__in=UNFINISHED).first()
        if mine and batch is not None:
            writing.write_files(batch, mine.alive)


@_task
def note_last_use() -> None:
    with _acquire_lock("note_last_use") as mine:
        if mine:
            last_use.flush(_shards().central)


@_task
def warn_of_budgets() -> None:
    with _acquire_lock("warn_of_budgets") as mine:
        if mine:
            budget_warnings.warn(timezone.now())


@_task
def deliver_webhooks() -> None:
    with _acquire_lock("deliver_webhooks") as mine:
        if mine:
            now = timezone.now()
            events.collect(now)
            deliveries.send_due(now)


@_task
def prune() -> None:
    with _acquire_lock("prune") as mine:
        if mine:
            pruned = pruning.prune(timezone.now())
            if pruned.total():
                logger.info("pruned: %s", dict(+pruned))


@_task
def sample_load() -> None:
    with _acquire_lock("sample_load") as mine:
        if mine:
            load.sample(_shards(), timezone.now())
