"""Sends lines to the queue in windows, so that live requests never wait behind a file."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import cast

from django.conf import settings
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Length
from redis.exceptions import RedisError

from completions.batches import lines, progress, states
from completions.batches.planning.windows import OLDEST_SHARE
from completions.catalog import model_files
from completions.database.parts import parts, portions
from completions.jobs.durable import find_missing
from completions.jobs.limits import ByteBounds, UnseededError
from completions.jobs.new_job import NewJob
from completions.jobs.operate import is_nearly_full
from completions.jobs.sharding.shards import Layout, SyncShards, run_each, run_grouped
from completions.jobs.store import SyncStore
from completions.jobs.submit import FIRST_CHECK, LINES_PER_SEQUENCE, submit_durable
from completions.jobs.workers import list_all_workers
from completions.models import Batch, BatchLine, BatchStatus, LineState
from completions.models.batches import parse_job_id
from completions.usage import budgets

logger = logging.getLogger(__name__)

Publish = Callable[[str, str, int], None]
"""Job id, model, priority. Raises kombu's OperationalError when the broker is unreachable."""

_BATCH_SIZE = 500
_MAX_COMPRESSED_BYTES = 1024 * 1024
_MAX_BYTES = 4 * 1024 * 1024
"""Bytes of lines held at once: as SQL stores them, and as JSON. As objects of Python, they take ten
times as much."""
_ATTEMPTS = 3
"""Attempts to send lines. Retries seed the budgets of the key and the organization in Redis."""
BUDGET_PAUSE = 20.0
"""Seconds until lines that exceeded a budget are tried again."""
_paused_until: dict[str, float] = {}
"""Batches whose budget is spent, by the time.monotonic() of their next attempt."""


def feed(shards: SyncShards, publish: Publish) -> int:
    """Send as many lines as the windows of their models have room for. Returns their number.

    A window counts lines; all windows together hold no more than `ByteBounds.of_lines`.
    Organizations with waiting lines share both equally. Within an organization, batches go in the
    order of `planning/windows.py`; the oldest one always has its part, of one line at least. A line
    is marked as sent before Redis has it; `restore_lost` undoes the mark if the line never arrives.
    Nothing is sent to a shard that is down or nearly full.
    """
    fed = 0
    by_model, all_sent = _list_batches_by_model(), _count_sent()
    owners = {batch.organization_id for batches in by_model.values() for batch in batches}
    room_in_bytes = _measure_room(shards, owners)
    if not room_in_bytes:
        return 0
    accepting = [each for each in list_all_workers(shards) if each.accepting]
    for model, batches in by_model.items():
        entry = model_files.load_catalog().get(model)
        if entry is None:
            continue  # waits until models.toml has the model again, or expires
        slots = sum(each.slots or entry.max_sequences for each in accepting if each.model == model)
        window = LINES_PER_SEQUENCE * (slots or entry.max_sequences)
        share = max(1, window // len({batch.organization_id for batch in batches}))
        room = dict.fromkeys((batch.organization_id for batch in batches), share)
        of_batch: Counter[str] = Counter()
        for organization_id, batch_id, sent in all_sent[model]:
            room[organization_id] = room.get(organization_id, share) - sent
            of_batch[batch_id] = sent
        oldest = {batch.organization_id: batch for batch in reversed(batches)}
        own_part = max(1, int(share * OLDEST_SHARE))
        parts_first = [(batch, own_part - of_batch[batch.id]) for batch in oldest.values()]
        in_turn = sorted(batches, key=lambda batch: progress.make_turn(batch, model))
        for batch, most in [*parts_first, *((batch, share) for batch in in_turn)]:
            owner = batch.organization_id
            if owner not in room_in_bytes:
                continue
            most, store = min(most, room[owner]), shards.find_by_job(batch.job_id(0))
            try:
                count, size = _send(store, publish, batch, model, most, room_in_bytes[owner])
            except RedisError as error:
                if len(shards.stores) == 1:
                    raise
                logger.warning("the shard of %s does not answer: %s", batch.id, error)
                del room_in_bytes[owner]
                continue
            room[owner] -= count
            room_in_bytes[owner] -= size
            fed += count
    return fed


def _measure_room(shards: SyncShards, owners: Collection[int]) -> dict[int, int]:
    """Return the bytes that each organization's lines may still hold in Redis, where its shard
    answers and is not nearly full."""

    def measure(store: SyncStore) -> dict[int, int]:
        own = [owner for owner in owners if shards.find_by_organization(owner) is store]
        memory = cast("dict[str, int]", store.client.info("memory"))
        if is_nearly_full(memory) or not own:
            return {}
        limit = memory["maxmemory"] // Layout.read(settings).per_server
        total, of_key = settings.MAX_QUEUED_BYTES, settings.MAX_QUEUED_BYTES_PER_KEY
        share = ByteBounds.derive(limit, total, of_key).of_lines // len(own)
        scopes = [f"b{owner}" for owner in own]
        held = cast("list[bytes | None]", store.client.hmget(store.keys.bytes, scopes))
        return {owner: share - int(sum_ or 0) for owner, sum_ in zip(own, held, strict=True)}

    rooms = run_each(shards, measure)
    return {owner: room for each in rooms for owner, room in each.items()}


def _list_batches_by_model() -> dict[str, list[Batch]]:
    sendable = Q(batch__held=False) | Q(position__lt=F("batch__pilot"))
    waiting = BatchLine.objects.filter(sendable, batch=OuterRef("pk"), state=LineState.WAITING)
    fed = Batch.objects.filter(
        Exists(waiting), status=BatchStatus.IN_PROGRESS, organization__suspended_at=None
    )
    by_model: dict[str, list[Batch]] = defaultdict(list)
    owned = fed.select_related("api_key__organization", "organization")
    for batch in owned.order_by("created_at", "id"):
        for model in batch.model_ids:
            by_model[model].append(batch)
    return by_model


def _count_sent() -> dict[str, list[tuple[int, str, int]]]:
    """Return the organization, the batch and the number of sent lines, by model."""
    sent = BatchLine.objects.filter(state=LineState.SENT, batch__status__in=_WITH_SENT_LINES)
    counted: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
    columns = "model", "batch__organization_id", "batch_id"
    for model, *row in sent.order_by().values_list(*columns).annotate(sent=Count("id")):
        counted[model].append(tuple(row))
    return counted


_WITH_SENT_LINES = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


def _send(
    store: SyncStore, publish: Publish, batch: Batch, model: str, most: int, most_bytes: int
) -> tuple[int, int]:
    """Send lines of a batch that ask for a model, the last of which may exceed `most_bytes`.
    Returns how many, and their bytes."""
    if most <= 0 or most_bytes <= 0 or time.monotonic() < _paused_until.get(batch.id, 0):
        return 0, 0
    _paused_until.pop(batch.id, None)
    waiting = batch.lines.filter(state=LineState.WAITING, model=model)
    waiting = waiting.order_by("position", "number")
    if batch.held:
        waiting = waiting.filter(position__lt=batch.pilot)
    count = size = 0
    for group in _groups(batch, waiting[:most], most_bytes):
        taken = set(mark_sent([line for line, _ in group]))
        jobs = [job for line, job in group if line in taken]
        refused = []
        for job, reply in zip(jobs, _submit(store, jobs), strict=True):
            if isinstance(reply, bool):
                count += 1
                size += job.size
                publish(job.id, job.model, job.priority)
            else:
                refused.append(parse_job_id(job.id)[1])
        if refused:
            _wait(batch, refused)
            break
    return count, size


def _groups(
    batch: Batch, waiting: QuerySet[BatchLine], most_bytes: int
) -> Iterator[list[tuple[BatchLine, NewJob]]]:
    """Yield lines with their jobs, in groups that fit the memory of this process, until they have
    `most_bytes`."""

    def jobs() -> Iterator[tuple[BatchLine, NewJob]]:
        left = most_bytes
        sized = waiting.defer("job").annotate(compressed_size=Length("job"))
        for part in portions(
            sized, _BATCH_SIZE, _MAX_COMPRESSED_BYTES, lambda line: line.compressed_size
        ):
            rows = BatchLine.objects.filter(id__in=[line.id for line in part])
            packed = dict(rows.values_list("id", "job"))
            for line in part:
                line.job = packed.pop(line.id, b"")
                if not line.job:
                    continue  # it has ended meanwhile
                job = lines.make_job(batch, line)
                line.job = b""
                yield line, job
                left -= job.size
                if left <= 0:
                    return

    return portions(jobs(), _BATCH_SIZE, _MAX_BYTES, lambda each: each[1].size)


def _submit(store: SyncStore, jobs: Sequence[NewJob]) -> list[object]:
    """Submit jobs and return one reply for each. Seeds the budgets that Redis lacks."""
    for _ in range(_ATTEMPTS):
        replies = submit_durable(store, jobs, FIRST_CHECK)
        unseeded = {reply.scope for reply in replies if isinstance(reply, UnseededError)}
        if not unseeded:
            break
        for scope in sorted(unseeded):
            budgets.seed_store(store, scope)
        # Redis replies False for jobs that the first attempt stored; they are published too.
    return list(replies)


def _wait(batch: Batch, numbers: Sequence[int]) -> None:
    """Mark lines that exceeded a budget as waiting again, and pause their batch."""
    rows = batch.lines.filter(number__in=numbers, state=LineState.SENT)
    rows.update(state=LineState.WAITING)
    _paused_until[batch.id] = time.monotonic() + BUDGET_PAUSE
    logger.info("%s waits: a budget of its key or organization is spent", batch.id)


def mark_sent(waiting_lines: list[BatchLine]) -> list[BatchLine]:
    """Mark waiting lines as sent. Returns the lines to send.

    A feeder that stalled until it lost its lock may compete with another one here. Lines that the
    other one sent and that have ended must not run again. Lines that have not ended may be sent
    twice, because Redis ignores the second submission.
    """
    ids = [line.id for line in waiting_lines]
    waiting = BatchLine.objects.filter(id__in=ids, state=LineState.WAITING)
    if waiting.update(state=LineState.SENT) == len(ids):
        return waiting_lines
    sent = BatchLine.objects.filter(id__in=ids, state=LineState.SENT)
    unanswered = set(sent.values_list("id", flat=True))
    return [line for line in waiting_lines if line.id in unanswered]


def restore_lost(shards: SyncShards) -> int:
    """Mark sent lines that are missing from Redis as waiting again. Returns their number.

    Must not run concurrently with `feed`, which marks lines as sent before it sends them.
    """
    restored = 0
    sent = BatchLine.objects.filter(batch__status__in=_WITH_SENT_LINES, state=LineState.SENT)
    for part in parts(_with_batches(sent), _BATCH_SIZE):
        by_job = {line.batch.job_id(line.number): line.id for line in part}
        missing = run_grouped(shards, by_job, find_missing)
        lost = [by_job[job_id] for job_id in chain.from_iterable(missing)]
        # A result may have been stored since the query.
        unended = BatchLine.objects.filter(id__in=lost, state=LineState.SENT)
        restored += unended.update(state=LineState.WAITING) if lost else 0
    return restored


def cancel_closing(shards: SyncShards) -> int:
    """Cancel the running lines of closing batches. Returns their number."""
    cancelled = 0
    for part in parts(_with_batches(states.find_lines_to_cancel()), _BATCH_SIZE):
        job_ids = [line.batch.job_id(line.number) for line in part]
        cancelled += sum(run_grouped(shards, job_ids, _cancel))
    return cancelled


def _cancel(store: SyncStore, job_ids: Sequence[str]) -> int:
    store.call_all([("cancel", [job_id, "batch"]) for job_id in job_ids])
    return len(job_ids)


def _with_batches(sent: QuerySet[BatchLine]) -> list[BatchLine]:
    """Load sent lines without their jobs. The send windows limit their number."""
    return list(sent.select_related("batch").only("number", "batch__job_prefix"))
