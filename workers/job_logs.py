"""Log lines of a worker bear the id of the HTTP request whose job they speak of."""

import logging
from collections.abc import Callable

from completions.jobs.execute import Claim


def about(claim: Claim) -> dict[str, str]:
    """`extra` of a line about a job."""
    return {"job_id": claim.job_id, "request_id": claim.request_id}


class EngineLines(logging.Filter):
    """The engine knows its requests by their jobs' ids (`engine_request` in its lines' `extra`) and
    nothing of HTTP: this adds the rest."""

    def __init__(self, find: Callable[[str], Claim | None]) -> None:
        super().__init__()
        self._find = find

    def filter(self, record: logging.LogRecord) -> bool:
        job_id = record.__dict__.pop("engine_request", None)
        if job_id is not None:
            claim = self._find(job_id)
            record.__dict__.update(about(claim) if claim else {"job_id": job_id})
        return True

    def install(self) -> None:
        """On the handlers that write the lines."""
        for handler in logging.getLogger().handlers:
            handler.addFilter(self)
