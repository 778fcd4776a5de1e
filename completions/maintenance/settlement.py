"""Moves ended jobs from Redis to SQL, each exactly once: usage, results, lines of batches.

Redis keeps the data of a job until SQL has committed it, and deletes the entry that names the job
last. A crash in between repeats the round, which is idempotent: usage has one row per job id, and
a result is stored only if there is none.
"""

import logging
from collections.abc import Sequence
from functools import partial

from django.conf import settings
from django.db import IntegrityError, InterfaceError, OperationalError, transaction

from completions.batches.lines import LINE_TTL
from completions.batches.receipts.receipt import BuildOf
from completions.batches.results import storing
from completions.jobs import durable
from completions.jobs.ended import FIRST, EndedJob, delete_entries, read_ended
from completions.jobs.store import SyncStore
from completions.jobs.workers import Builds
from completions.models import StoredResponse
from completions.responses.response_object import ItemsResponseContext
from completions.responses.whole_response import make_ended_response
from completions.sessions import recording
from completions.usage import ledger

logger = logging.getLogger(__name__)

BATCH_SIZE = 250
"""Jobs per transaction, which makes some ten queries besides. With results of 2,000 tokens each it
holds about 25 MB."""


def settle(store: SyncStore, builds: Builds | None = None) -> int:
    """Move all ended jobs. Returns how many. `builds` is what earlier calls found of workers."""
    find_build = partial((builds or Builds()).find, store)
    settled = 0
    since: str | None = FIRST
    while since is not None:
        jobs, since = read_ended(store, BATCH_SIZE, since)
        try:
            stored = _store_all(jobs, find_build)
        except IntegrityError as error:
            # The lock was lost, and another worker stored some jobs. The next run skips them.
            logger.warning(
                "another worker settles the same jobs; leaving them to the next run: %s", error
            )
            break
        lines = [job for job in stored if job.kind == "batch"]
        delete_entries(store, lines, LINE_TTL)
        delete_entries(store, [j for j in stored if j.kind != "batch"], settings.RESULT_TTL)
        _log_failures(stored)
        settled += len(stored)
    return settled


def _store_all(jobs: Sequence[EndedJob], builds: BuildOf) -> Sequence[EndedJob]:
    """Store the jobs in one transaction, or one by one if any of them cannot be stored.

    Returns the stored jobs. The others stay in Redis and are retried, without delaying later jobs.
    """
    try:
        answers = [storing.make_answer(job) for job in jobs if job.kind == "batch" and job.context]
        with transaction.atomic():
            ledger.record(jobs)
            recording.record_turns([job for job in jobs if job.context], builds)
            durable.store_results([job for job in jobs if job.is_durable and job.kind != "batch"])
            storing.store_answers(answers, builds)
            _join_conversations(jobs)
    except (IntegrityError, OperationalError, InterfaceError):
        raise  # a fault of SQL, not of a job
    except Exception:
        if len(jobs) > 1:
            return [job for each in jobs for job in _store_all([each], builds)]
        logger.exception(
            "job %s cannot be settled",
            jobs[0].id,
            extra={"job_id": jobs[0].id, "request_id": jobs[0].request_id},
        )
        return []
    return jobs


def _join_conversations(jobs: Sequence[EndedJob]) -> None:
    """Add what responses said to the conversations that they belong to."""
    prefix = ItemsResponseContext.id_prefix
    by_id = {job.id: job for job in jobs if job.id.startswith(prefix) and job.context}
    for row in StoredResponse.list_unjoined(job_id__in=by_id):
        row.join(make_ended_response(by_id[row.pk]))


def _log_failures(jobs: Sequence[EndedJob]) -> None:
    """Log failed jobs. Every ended job passes here, whether a worker or a script ended it."""
    for job in jobs:
        if job.error is not None:
            facts = {
                "job_id": job.id,
                "request_id": job.request_id,
                "code": job.error.code,
                "model": job.model,
                "kind": job.kind,
                "api_key": job.api_key_id,
            }
            logger.warning("job %s failed: %s", job.id, job.error, extra=facts)
