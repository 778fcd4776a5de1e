"""The `Idempotency-Key` header (draft-ietf-httpapi-idempotency-key-header): a repeated request runs
once and gets the same answer. A key belongs to an API key and a route, and lives for a day after
its job has ended. A refused request leaves no trace, so its key can be used again."""

import hashlib
import json

from django.utils import timezone

from completions.exceptions import APIError
from completions.http.base import APIRequest
from completions.jobs import durable
from completions.jobs.new_job import IdempotencyKey

HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
MAX_LENGTH = 255
"""Characters of a key."""
REPLAYED_FOR = 24 * 3600
"""Seconds for which SQL keeps the result of a request with a key."""


def read_key(
    request: APIRequest, route: str, content: bytes | None = None
) -> IdempotencyKey | None:
    """Read the request's key, with a digest of what a repetition has to repeat, by default the
    body; None without one. Raises APIError."""
    key = request.META.get("HTTP_IDEMPOTENCY_KEY")  # `request.headers` would copy all headers
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_LENGTH:
        message = f"{HEADER} has {len(key)} characters; it must have 1-{MAX_LENGTH}."
        raise APIError("invalid_value", message, HEADER)
    if content is None:
        content = json.dumps(request.data, sort_keys=True).encode()  # orjson has no large integers
    return IdempotencyKey(route, key, hashlib.sha256(content).hexdigest())


async def find_first_job(key: IdempotencyKey, api_key_id: int) -> str | None:
    """Find the id of the job that used the key before. Raises APIError for a different body."""
    job = await durable.find_by_key(key, api_key_id, timezone.now())
    if job is None:
        return None
    job_id, body_digest = job
    if body_digest != key.body_digest:
        raise APIError("idempotency_key_reused", param=HEADER)
    return job_id


def make_conflict() -> APIError:
    """Return a 409: the first request with this key is still in progress."""
    return APIError("idempotency_in_progress", param=HEADER)


def refuse(request: APIRequest) -> None:
    """Raise APIError if the header is sent to a route that does not support it."""
    if HEADER in request.headers:
        message = f"{HEADER} is not supported on this route; send the request without it."
        raise APIError("unsupported_parameter", message, HEADER)
