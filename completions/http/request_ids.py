"""The id of the request that is being answered: the client's own, or one of ours. It is in the
response's `x-request-id`, in the log, and stays with the job, so that a person can find it."""

import re
import secrets
from contextvars import ContextVar

_HARMLESS = re.compile(r"[A-Za-z0-9._:-]{1,64}")

current: ContextVar[str] = ContextVar("request_id", default="")
"""Empty outside of a request."""


def begin(given: str) -> str:
    """Take the client's id, where it is harmless, else a new one, as the current one."""
    request_id = given if _HARMLESS.fullmatch(given) else f"req_{secrets.token_hex(16)}"
    current.set(request_id)
    return request_id
