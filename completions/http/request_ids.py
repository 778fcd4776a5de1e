"""The id of the current request: the client's, or a new one. The response has it as
`x-request-id`, and log lines and the job have it too."""

import re
import secrets
from contextvars import ContextVar

_HARMLESS = re.compile(r"[A-Za-z0-9._:-]{1,64}")

current: ContextVar[str] = ContextVar("request_id", default="")
"""Empty outside a request."""


def begin(given: str) -> str:
    """Set and return the current id: the client's if it is harmless, else a new one."""
    request_id = given if _HARMLESS.fullmatch(given) else f"req_{secrets.token_hex(16)}"
    current.set(request_id)
    return request_id
