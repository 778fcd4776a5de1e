"""Jobs in SQL: stored before the 202 response, put back if Redis loses them, and read once they
have ended."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import orjson
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F, Max
from django.db.models.functions import Greatest

from completions.contract.job_request import JobRequest
from completions.contract.json_lines import compress_lines, decompress_lines
from completions.database.parts import parts
from completions.database.release import release, run_and_release
from completions.jobs.ended import EndedJob
from completions.jobs.events import EndEvent, decode
from completions.jobs.limits import Limits
from completions.jobs.new_job import IdempotencyKey, NewJob, ResponseInput, SessionTurn
from completions.jobs.record import JobRecord
from completions.jobs.sharding.shards import SyncShards, run_grouped
from completions.jobs.store import SyncStore
from completions.jobs.submit import submit_durable
from completions.models import (
    Conversation,
    ConversationItem,
    Job,
    JobStatus,
    Session,
    StoredResponse,
)
from completions.models.organizations import lock_organization
from completions.models.timed_ids import read_time

_SUBMISSION_TIME = timedelta(seconds=10)
"""A job younger than this may not be in Redis yet; do not resubmit it."""
_BATCH_SIZE = 500
_SHARED_FIELDS = (
    "id",
    "kind",
    "model",
    "organization_id",
    "api_key_id",
    "ttl",
    "prices",
    "request_id",
)
"""Fields that Job and NewJob share, beside the request and the context, which Job has as JSON."""


PromiseMaker = Callable[[NewJob], dict[str, object] | None]
"""Makes the forecast of a job's end, for SQL; None if nothing is known."""


class KeyTakenError(Exception):
    """A request with the same idempotency key was stored a moment ago."""


class ConversationLockedError(Exception):
    """Another response of the same conversation has not ended, or ended after the prompt was made;
    or the conversation is gone."""


class SessionLostError(Exception):
    """The session of a turn was deleted a moment ago, or has expired."""


class SessionMovedError(Exception):
    """Another turn was added to the session a moment ago, which this one would have to follow."""


async def store(job: NewJob, make_promise: PromiseMaker | None = None) -> None:
    """Insert the job; from then on it survives the loss of Redis. Raises KeyTakenError,
    ConversationLockedError, SessionLostError and SessionMovedError, and what `make_promise`
    raises."""
    deadline = datetime.now(UTC) + timedelta(seconds=job.seconds)
    request = msgspec.to_builtins(job.request, str_keys=True)
    shared = {name: getattr(job, name) for name in _SHARED_FIELDS}
    context = orjson.loads(job.context)
    row = Job(deadline_at=deadline, request=request, context=context, **shared)
    row.created_at = read_time(job.id) or row.created_at
    if job.idempotency is not None:
        row.route = job.idempotency.route
        row.idempotency_key = job.idempotency.key
        row.body_digest = job.idempotency.body_digest
    try:
        await run_and_release(partial(_reserve, row, job, make_promise))
    except IntegrityError as error:
        if job.idempotency is None:
            raise
        raise KeyTakenError from error


def _reserve(row: Job, job: NewJob, make_promise: PromiseMaker | None) -> None:
    """Insert the row with the forecast of its end, if that is asked for. Jobs that an organization
    sends together are inserted one after the other, so each forecast counts those before it."""
    if make_promise is None:
        _insert(row, job)
        return
    with lock_organization(job.organization_id):
        row.promise = make_promise(job)
        _insert(row, job)


def _insert(row: Job, job: NewJob) -> None:
    """Insert the row, and with it what it is stored with. Raises ConversationLockedError,
    SessionLostError and SessionMovedError."""
    if (turn := job.session_turn) is not None:
        with transaction.atomic():
            _add_to_session(row, turn, job.context)
            row.save(force_insert=True)
        return
    if (response_input := job.response_input) is not None:
        with transaction.atomic():
            _insert_response(row, response_input)
        return
    row.save(force_insert=True)


def _insert_response(row: Job, given: ResponseInput) -> None:
    """Insert the row of a stored response. Raises ConversationLockedError."""
    conversation_id = given.conversation_id
    if conversation_id is not None:
        # The row stays locked until the end of the transaction: nothing joins meanwhile.
        kept = Conversation.put_off_expiry(conversation_id)
        items = ConversationItem.objects.filter(conversation_id=conversation_id)
        if (
            not kept
            or StoredResponse.objects.filter(
                conversation_id=conversation_id, is_joined=False
            ).exists()
            or (items.aggregate(last=Max("pk"))["last"] or 0) != given.last_item
        ):
            raise ConversationLockedError
    row.save(force_insert=True)
    StoredResponse.objects.create(
        job=row,
        previous_id=given.previous_id,
        conversation_id=conversation_id,
        is_joined=conversation_id is None,
        input=StoredResponse.pack(given.items),
    )


def _add_to_session(row: Job, turn: SessionTurn, context: bytes) -> None:
    """Make the row a turn of its session, which is made or lives longer. Raises SessionLostError
    and SessionMovedError."""
    expires_at = datetime.now(UTC) + timedelta(seconds=turn.seconds)
    row.session_id, row.turn = turn.session_id, turn.content
    row.after_turn, row.after_index = turn.after_turn, turn.after_index
    if turn.opens_for:
        Session.objects.create(
            id=turn.session_id,
            organization_id=row.organization_id,
            api_key_id=row.api_key_id,
            model=turn.opens_for,
            on_drift=turn.on_drift,
            seconds=turn.seconds,
            expires_at=expires_at,
            bytes=_count_bytes(turn, context),
        )
        return
    more = F("bytes") + _count_bytes(turn, context)
    kept = Session.objects.filter(id=turn.session_id)
    if not kept.update(bytes=more, expires_at=Greatest("expires_at", expires_at)):
        raise SessionLostError
    # The session's row stays locked until the end of the transaction: no other turn is added.
    if turn.newest_turn not in (None, Job.find_newest_turn(turn.session_id)):
        raise SessionMovedError


def _count_bytes(turn: SessionTurn, context: bytes) -> int:
    """Count what a turn adds to its session; the context may hold the whole prompt."""
    return len(turn.content) + len(context)


async def discard(job_id: str, refused: NewJob | None = None) -> None:
    """Delete a job that its client deletes, or that was refused after it was stored, with what it
    added to a session."""
    turn = None if refused is None else refused.session_turn

    def delete() -> None:
        with transaction.atomic():
            deleted, _ = Job.objects.filter(id=job_id).delete()
            if turn is not None and turn.opens_for:
                Session.objects.filter(id=turn.session_id, turns=None).delete()
            elif refused is not None and turn is not None and deleted:
                kept = Session.objects.filter(id=turn.session_id)
                kept.update(bytes=F("bytes") - _count_bytes(turn, refused.context))

    await run_and_release(delete)


async def find(job_id: str, now: datetime) -> JobRecord | None:
    """Find a job that Redis does not know: it has ended, or Redis has lost it."""
    job = await Job.objects.filter(id=job_id).afirst()
    await release()
    if job is None or (job.expires_at is not None and job.expires_at <= now):
        return None
    return make_record(job)


async def find_by_key(
    key: IdempotencyKey, api_key_id: int, now: datetime
) -> tuple[str, str] | None:
    """Find the id and body digest of the job that was made with an idempotency key."""
    used = Job.objects.filter(api_key_id=api_key_id, route=key.route, idempotency_key=key.key)
    await used.filter(expires_at__lte=now).adelete()
    job = await used.only("id", "body_digest").afirst()
    await release()
    return (job.id, job.body_digest) if job else None


def store_results(ended: Sequence[EndedJob]) -> None:
    """Store how jobs ended, with their events, in the caller's transaction."""
    by_id = {job.id: job for job in ended if job.stream}
    jobs = list(Job.objects.filter(id__in=by_id, status=JobStatus.QUEUED))
    for job in jobs:
        end = by_id[job.id]
        job.status = end.state
        job.error_code = end.error.code if end.error else ""
        job.finished_at = datetime.fromtimestamp(end.finished, UTC)
        # A turn expires with its session.
        job.expires_at = None if job.session_id else job.finished_at + timedelta(seconds=job.ttl)
        job.events = compress_lines(end.stream)
        job.request = {}
    columns = ["status", "error_code", "finished_at", "expires_at", "events", "request"]
    Job.objects.bulk_update(jobs, columns)


def prune(now: datetime) -> int:
    """Delete jobs whose results have expired. Returns the number of rows."""
    deleted, _ = Job.objects.filter(expires_at__lte=now).delete()
    return deleted


def resubmit_lost(shards: SyncShards, now: datetime) -> int:
    """Put back jobs that have not ended and that Redis does not know. Returns how many."""
    restored = 0
    waiting = Job.objects.filter(status=JobStatus.QUEUED, created_at__lt=now - _SUBMISSION_TIME)
    ids = waiting.values_list("id", flat=True).iterator(chunk_size=_BATCH_SIZE)

    def resubmit(store: SyncStore, job_ids: list[str]) -> int:
        lost_ids = find_missing(store, job_ids)
        if not lost_ids:
            return 0
        rows = waiting.filter(id__in=lost_ids).select_related("organization", "api_key")
        return submit_durable(store, [_restore(row) for row in rows]).count(True)

    for job_ids in parts(ids, _BATCH_SIZE):
        restored += sum(run_grouped(shards, job_ids, resubmit))
    return restored


def _restore(job: Job) -> NewJob:
    places = Limits(max_concurrency=job.api_key.max_concurrency)
    return replace(_make_new_job(job), limits=places, stored=job.organization.store_prompts)


def _make_new_job(job: Job) -> NewJob:
    """Make the job of a row, without limits: it was admitted before."""
    key = None
    if job.idempotency_key:
        key = IdempotencyKey(job.route, job.idempotency_key, job.body_digest)
    shared = {name: getattr(job, name) for name in _SHARED_FIELDS}
    request = msgspec.convert(job.request, JobRequest, str_keys=True)
    seconds = (job.deadline_at - datetime.now(UTC)).total_seconds()
    turn = None
    if job.session_id is not None:
        turn = SessionTurn(job.session_id, job.after_turn, job.after_index, b"", 0)
    return NewJob(
        request=request,
        context=orjson.dumps(job.context),
        seconds=seconds,
        head_start=find_head_start(job.kind, job.deadline_at - job.created_at),
        idempotency=key,
        session_turn=turn,
        **shared,
    )


def find_head_start(kind: str, window: timedelta) -> float:
    """Return the seconds by which a job goes before its turn: those that its window is shorter than
    usual."""
    usual = timedelta(seconds=settings.BACKGROUND_TIMEOUT)
    is_short = kind == "background" and usual - window > _SUBMISSION_TIME
    return (usual - window).total_seconds() if is_short else 0.0


def make_record(job: Job) -> JobRecord:
    """Make the record of a job from its row in SQL."""
    new = _make_new_job(job)
    created = job.created_at.timestamp()
    queued = replace(new.make_record(), created=created, request=new.request_json)
    if job.events is None:
        return queued
    events = [decode(event) for event in decompress_lines(job.events)]
    end = events[-1]
    assert isinstance(end, EndEvent)
    assert job.finished_at is not None
    return queued.with_end(end, job.finished_at.timestamp(), events)


def find_missing(store: SyncStore, job_ids: Sequence[str]) -> list[str]:
    """Find the jobs among these that Redis does not know."""
    pipeline = store.client.pipeline(transaction=False)
    for job_id in job_ids:
        pipeline.exists(store.keys.job(job_id))
    present = pipeline.execute()
    return [job_id for job_id, there in zip(job_ids, present, strict=True) if not there]
