"""The reconciler: ends jobs whose time is up, and finds those whose message or worker was lost."""

from dataclasses import dataclass
from typing import Final, cast

from completions.jobs.store import SyncStore

RECHECKS = (30.0, 5.0)
"""Seconds after which the reconciler looks again at a queued job, and at a running one; the latter
is how long a worker's death can go unnoticed."""
FAILED_AFTER: Final = 60.0
"""Seconds past its deadline after which a job fails even if a live worker holds it."""
_BATCH_SIZE = 1000
"""The most jobs that one call looks at."""


@dataclass(frozen=True, slots=True)
class LostJob:
    """An open job whose message must be published again."""

    job_id: str
    model: str
    priority: int
    request_id: str = ""


def reconcile(store: SyncStore) -> list[LostJob]:
    """End jobs whose time is up or whose client has gone. Returns open jobs whose message or worker
    was lost."""
    reply = store.call("reconcile", _BATCH_SIZE, *RECHECKS, FAILED_AFTER)
    return [
        LostJob(job_id.decode(), model.decode(), int(priority), request_id.decode())
        for job_id, model, priority, request_id in cast("list[list[bytes]]", reply)
    ]


def correct_byte_sums(store: SyncStore) -> int:
    """Add up again the bytes of open jobs. Returns how many sums were wrong."""
    return cast("int", store.call("recount"))
