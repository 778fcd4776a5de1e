"""One log line per HTTP request: its client, its outcome and its job. Several tasks add facts, so
they share a dict in a context variable."""

import logging
import re
import secrets
from contextvars import ContextVar
from typing import Any

from structlog.contextvars import bind_contextvars

from completions.exceptions import APIError

logger = logging.getLogger("quire.access")

_MAX_PATH_LENGTH = 500
"""Characters of a path in a log line."""
_PARAM = re.compile(r"[\w.\[\]]{1,100}", re.ASCII)

_HARMLESS = re.compile(r"[A-Za-z0-9._:-]{1,64}")

ERROR, STORES_PROMPTS = "error", "stores_prompts"
"""Facts that the gateway takes out, because no log line has them: the `APIError` itself, whose
message may quote the request, and whether the caller's organization lets texts be stored."""

_facts: ContextVar[dict[str, object] | None] = ContextVar("facts", default=None)


def begin(given_id: str) -> dict[str, Any]:
    """Start the facts of a request and return them. Its id, the client's if it is harmless, is in
    every log line of this context and in the header `x-request-id`."""
    request_id = given_id if _HARMLESS.fullmatch(given_id) else f"req_{secrets.token_hex(16)}"
    facts: dict[str, object] = {"request_id": request_id}
    _facts.set(facts)
    bind_contextvars(request_id=request_id)
    return facts


def current_request_id() -> str:
    """Return the id of the current request; empty outside a request."""
    return str((_facts.get() or {}).get("request_id", ""))


def note(**facts: object) -> None:
    """Add facts to the current request's line, if there is one. Never add secrets or prompts."""
    request_facts = _facts.get()
    if request_facts is not None:
        request_facts.update(facts)


def note_caller(api_key: int, organization: int, stores_prompts: bool) -> None:
    note(api_key=api_key, organization=organization, **{STORES_PROMPTS: stores_prompts})


def note_error(error: APIError) -> None:
    """Note why a request was refused. The name of an unknown parameter may be any text."""
    note(code=error.code, **{ERROR: error})
    if error.param is not None and _PARAM.fullmatch(error.param):
        note(param=error.param)


def write(method: str, path: str, status: int, seconds: float, facts: dict[str, object]) -> None:
    """Write the line. A path may be long or contain control characters, so it is cut and
    escaped."""
    path = path if len(path) <= _MAX_PATH_LENGTH else path[:_MAX_PATH_LENGTH] + "…"
    path = path if path.isprintable() else ascii(path)[1:-1]
    line = {"method": method, "path": path, "status": status, "seconds": round(seconds, 4)}
    logger.info("%s %s %d", method, path, status, extra={**line, **facts})
