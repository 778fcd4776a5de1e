"""One log line per HTTP request: who asked for what, how it ended, which job it made.

Facts about a request come from several tasks, so the context variable holds a dict they share.
"""

import logging
import re
from contextvars import ContextVar
from typing import Any

from structlog.contextvars import bind_contextvars

from completions.errors import APIError

logger = logging.getLogger("quire.access")

_MOST_PATH = 500
"""Characters of a path in a log line."""
_PARAM = re.compile(r"[\w.\[\]]{1,100}", re.ASCII)

_facts: ContextVar[dict[str, Any] | None] = ContextVar("facts", default=None)


def begin(request_id: str) -> dict[str, Any]:
    """Start the facts of a request, in the context that the server runs it in. From now on, every
    log line of this context has the request id."""
    facts: dict[str, Any] = {"request_id": request_id}
    _facts.set(facts)
    bind_contextvars(request_id=request_id)
    return facts


def note(**facts: Any) -> None:
    """Add facts to the current request's line, if there is one. Never add secrets or prompts."""
    known = _facts.get()
    if known is not None:
        known.update(facts)


def note_error(error: APIError) -> None:
    """Note why a request was refused. An unknown parameter's name may be any text, so only
    ordinary names are logged."""
    note(code=error.code)
    if error.param is not None and _PARAM.fullmatch(error.param):
        note(param=error.param)


def write(method: str, path: str, status: int, seconds: float, facts: dict[str, Any]) -> None:
    """Write the line. A path may be long or contain control characters, so it is cut and
    escaped."""
    path = path if len(path) <= _MOST_PATH else path[:_MOST_PATH] + "…"
    path = path if path.isprintable() else ascii(path)[1:-1]
    logger.info(
        "%s %s %d",
        method,
        path,
        status,
        extra={
            "method": method,
            "path": path,
            "status": status,
            "seconds": round(seconds, 4),
            **facts,
        },
    )
