"""What happens to a repeated request, which has the same header `Idempotency-Key`: it runs once and
gets the same answer. A key belongs to an API key and a route, and lives for a day after its job has
ended. A refused request leaves no trace, so its key can be used again."""

from django.utils import timezone

from completions.delivery.preferences import IDEMPOTENCY_HEADER
from completions.exceptions import APIError
from completions.jobs import durable
from completions.jobs.new_job import IdempotencyKey

REPLAYED = "Idempotent-Replayed"
REPLAYED_FOR = 24 * 3600
"""Seconds for which SQL keeps the result of a request with a key."""


async def find_first_job(key: IdempotencyKey, api_key_id: int) -> str | None:
    """Find the id of the job that used the key before. Raises APIError for a different body."""
    job = await durable.find_by_key(key, api_key_id, timezone.now())
    if job is None:
        return None
    job_id, body_digest = job
    if body_digest != key.body_digest:
        raise APIError("idempotency_key_reused", param=IDEMPOTENCY_HEADER)
    return job_id


def make_conflict() -> APIError:
    """Return a 409: the first request with this key is still in progress."""
    return APIError("idempotency_in_progress", param=IDEMPOTENCY_HEADER)
