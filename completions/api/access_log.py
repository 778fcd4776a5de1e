"""One line per HTTP request: who asked for what, how it ended, which job it made.

What is known of a request grows on its way. Django runs a view in a task of its own, whose context
ends with it, so the context variable holds a dict that all of the request's tasks share.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from structlog.contextvars import bound_contextvars

logger = logging.getLogger("quire.access")

_facts: ContextVar[dict[str, Any] | None] = ContextVar("facts", default=None)


@contextmanager
def request(request_id: str) -> Iterator[dict[str, Any]]:
    """The facts of a request. Every log line meanwhile, of any logger, bears the request id."""
    facts: dict[str, Any] = {"request_id": request_id}
    token = _facts.set(facts)
    try:
        with bound_contextvars(request_id=request_id):
            yield facts
    finally:
        _facts.reset(token)


def note(**facts: Any) -> None:
    """Add to the line of the request at hand, if there is one. Never secrets, never prompts."""
    known = _facts.get()
    if known is not None:
        known.update(facts)


def write(method: str, path: str, status: int, seconds: float, facts: dict[str, Any]) -> None:
    """The line itself. A path may hold anything, and a terminal would obey it."""
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
