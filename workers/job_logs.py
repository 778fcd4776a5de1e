"""Adds the ids of the job and its HTTP request to a worker's log lines."""

import logging
from collections.abc import Callable

from completions.jobs.execute import Claim


def describe_claim(claim: Claim) -> dict[str, str]:
    """Return the `extra` of a log line about a job."""
    return {"job_id": claim.job_id, "request_id": claim.request_id}


class EngineLines(logging.Filter):
    """Adds the ids to lines of the engine, which have the job's id as `engine_request` in
    `extra`."""

    def __init__(self, find: Callable[[str], Claim | None]) -> None:
        super().__init__()
        self._find = find

    def filter(self, record: logging.LogRecord) -> bool:
        job_id = record.__dict__.pop("engine_request", None)
        if job_id is not None:
            claim = self._find(job_id)
            record.__dict__.update(describe_claim(claim) if claim else {"job_id": job_id})
        return True

    def install(self) -> None:
        """Add this filter to the handlers that write the lines."""
        for handler in logging.getLogger().handlers:
            handler.addFilter(self)
