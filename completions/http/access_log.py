"""One line per HTTP request: who asked for what, how it ended, which job it made.

What is known of a request grows on its way, in tasks of its own too, so the context variable holds
a dict that they share.
"""

import logging
import re
from contextvars import ContextVar
from typing import Any

from structlog.contextvars import bind_contextvars

from completions.errors import APIError

logger = logging.getLogger("quire.access")

_MOST_PATH = 500
"""Characters of a path that are written."""
_PARAM = re.compile(r"[\w.\[\]]{1,100}", re.ASCII)

_facts: ContextVar[dict[str, Any] | None] = ContextVar("facts", default=None)


def begin(request_id: str) -> dict[str, Any]:
    """The facts of a request, which the server runs in a context of its own. Every log line from
    now on, of any logger, bears the request id."""
    facts: dict[str, Any] = {"request_id": request_id}
    _facts.set(facts)
    bind_contextvars(request_id=request_id)
    return facts


def note(**facts: Any) -> None:
    """Add to the line of the request at hand, if there is one. Never secrets, never prompts."""
    known = _facts.get()
    if known is not None:
        known.update(facts)


def note_error(error: APIError) -> None:
    """Why a request was refused. A parameter that does not exist may be any text of the client."""
    note(code=error.code)
    if error.param is not None and _PARAM.fullmatch(error.param):
        note(param=error.param)


def write(method: str, path: str, status: int, seconds: float, facts: dict[str, Any]) -> None:
    """The line itself. A path may hold anything, of any length, and a terminal would obey it."""
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
