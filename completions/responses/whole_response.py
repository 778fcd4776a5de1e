"""The whole response of an ended job, as a client that waited for it would get it."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus

from completions.exceptions import from_job_error
from completions.jobs.ended import EndedJob
from completions.jobs.events import EndEvent, decode
from completions.responses.chat import ChatResponseContext
from completions.responses.completion import CollectedResponse, ResponseContext
from completions.responses.message_object import MessageContext
from completions.responses.response_object import ItemsResponseContext

_CONTEXT_TYPES: Mapping[str, type[ResponseContext]] = {
    each.id_prefix: each
    for each in (ResponseContext, ChatResponseContext, ItemsResponseContext, MessageContext)
}


def read_context(job_id: str, stored: bytes) -> ResponseContext:
    """Read the response context of a job from what the job holds of it."""
    return _find_type(job_id).read(stored)


def _find_type(job_id: str) -> type[ResponseContext]:
    return _CONTEXT_TYPES[re.split(r"(?<=[-_])", job_id, maxsplit=1)[0]]


def make_whole_response(job: EndedJob) -> tuple[int, dict[str, object]]:
    """Return the HTTP status and the body."""
    if job.error is not None:
        error = from_job_error(job.error.code, job.error.message)
        return error.status_code, error.envelope(_find_type(job.id).path)
    return HTTPStatus.OK, collect(job.id, job.context, job.stream).make_response(job.usage)


def make_ended_response(job: EndedJob) -> dict[str, object]:
    """Return the response object of an ended job of the Responses API, whatever its end was."""
    return collect(job.id, job.context, job.stream).make_polled(job)


def collect(job_id: str, context: bytes, stream: Iterable[bytes]) -> CollectedResponse:
    """Collect what the events of a job say, which may have ended before its choices did."""
    collected = read_context(job_id, context).make_collected()
    for data in stream:
        event = decode(data)
        if not isinstance(event, EndEvent):
            collected.add(event)
    return collected
