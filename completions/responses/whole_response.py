"""The whole response of an ended job, as a client that waited for it would get it."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from completions.exceptions import from_job_error
from completions.jobs.ended import EndedJob
from completions.jobs.events import EndEvent, decode
from completions.responses.chat import ChatResponseContext
from completions.responses.completion import ResponseContext

_CONTEXT_TYPES: Mapping[str, type[ResponseContext]] = {
    each.id_prefix: each for each in (ResponseContext, ChatResponseContext)
}


def make_whole_response(job: EndedJob) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body."""
    if job.error is not None:
        error = from_job_error(job.error.code, job.error.message)
        return error.status_code, error.envelope()
    prefix, dash, _ = job.id.partition("-")
    context = _CONTEXT_TYPES[prefix + dash].read(job.context)
    collected = context.make_collected()
    for data in job.stream:
        event = decode(data)
        if not isinstance(event, EndEvent):
            collected.add(event)
    return HTTPStatus.OK, collected.make_response(job.usage)
