"""Ended jobs move from Redis to SQL, each exactly once: usage, results, lines of batches.

Redis keeps what a job left until the transaction that stores it has been committed, and the entry
that names the job goes last. A crash in between repeats the round, which changes nothing: usage has
one row per job id, and results are only given to what has none yet.
"""

import logging
from collections.abc import Sequence

from django.conf import settings
from django.db import IntegrityError, transaction
from redis import Redis

from completions import background, usage
from completions.batches import results
from completions.batches.lines import RESULT_TTL
from completions.batches.results import Respond
from completions.jobs.ended import EndedJob, forget, read_ended

logger = logging.getLogger(__name__)

AT_ONCE = 100
"""Jobs of one transaction: results of 2,000 tokens each are some 10 MB."""


def settle(client: Redis, prefix: str, respond: Respond) -> int:
    """Move everything there is. Returns how many jobs were moved."""
    settled = 0
    while jobs := read_ended(client, prefix, AT_ONCE):
        lines = [results.answer(job, respond) for job in jobs if job.kind == "batch" and job.view]
        try:
            with transaction.atomic():
                usage.record(jobs)
                background.keep_results([job for job in jobs if job.kept and job.kind != "batch"])
                results.keep(lines)
        except IntegrityError as error:
            # The lock was lost and another worker stored some of them: the next turn sees that.
            logger.warning("jobs were settled twice at a time, left to the next turn: %s", error)
            break
        forget(client, prefix, [job for job in jobs if job.kind != "batch"], settings.RESULT_TTL)
        forget(client, prefix, [job for job in jobs if job.kind == "batch"], RESULT_TTL)
        _log_failures(jobs)
        settled += len(jobs)
        if len(jobs) < AT_ONCE:
            break
    return settled


def _log_failures(jobs: Sequence[EndedJob]) -> None:
    """Whoever ended a job, a worker, a script or the reconciler, it comes past here."""
    for job in jobs:
        if job.error is not None:
            logger.warning(
                "job %s failed: %s",
                job.id,
                job.error.message,
                extra={
                    "job_id": job.id,
                    "request_id": job.request_id,
                    "code": job.error.code,
                    "model": job.model,
                    "kind": job.kind,
                    "api_key": job.api_key_id,
                },
            )
