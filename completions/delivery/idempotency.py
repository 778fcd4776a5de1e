"""The `Idempotency-Key` header: a request that is sent again is answered again, and runs once.

Draft-ietf-httpapi-idempotency-key-header. A key belongs to an API key and a route, and is
remembered for a day after its job has ended. A request that was refused leaves no trace: it may be
sent again, corrected, with the same key.
"""

import hashlib
import json

from django.utils import timezone

from completions.errors import APIError
from completions.http.base import APIRequest
from completions.jobs import kept
from completions.jobs.record import IdempotencyKey

HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
MAX_LENGTH = 255


def key_of(request: APIRequest, route: str) -> IdempotencyKey | None:
    """The key with what tells bodies apart. Raises APIError."""
    key = request.META.get("HTTP_IDEMPOTENCY_KEY")  # `request.headers` would be a table of them all
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_LENGTH:
        message = f"{HEADER} must have 1-{MAX_LENGTH} characters."
        raise APIError("invalid_value", message, HEADER)
    body = json.dumps(request.data, sort_keys=True).encode()  # integers of any size
    return IdempotencyKey(route, key, hashlib.sha256(body).hexdigest())


async def first_job(key: IdempotencyKey, api_key_id: int) -> str | None:
    """The job that the key was used for before. Raises APIError when that was another request."""
    found = await kept.find_by_key(key, api_key_id, timezone.now())
    if found is None:
        return None
    job_id, body_digest = found
    if body_digest != key.body_digest:
        raise reused()
    return job_id


def reused() -> APIError:
    """422: one key, two different requests."""
    return APIError("idempotency_key_reused", param=HEADER)


def in_progress() -> APIError:
    """409: the first request with this key has not been answered yet."""
    return APIError("idempotency_in_progress", param=HEADER)


def refuse(request: APIRequest) -> None:
    """For routes that do not know the header: a client that sent it would rely on it."""
    if HEADER in request.headers:
        message = f"{HEADER} is not supported on this route; send the request without it."
        raise APIError("unsupported_parameter", message, HEADER)
