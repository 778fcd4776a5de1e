"""The whole response of an ended job, as a client that waited for it would get it."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from completions.exceptions import from_job_error
from completions.jobs.ended import EndedJob
from completions.jobs.events import EndEvent, decode
from completions.responses.chat import ChatView
from completions.responses.completion import View

_VIEW_TYPES: Mapping[str, type[View]] = {each.id_prefix: each for each in (View, ChatView)}


def whole_response(job: EndedJob) -> tuple[int, dict[str, Any]]:
    """The HTTP status and the body."""
    if job.error is not None:
        error = from_job_error(job.error.code, job.error.message)
        return error.status_code, error.envelope()
    prefix, dash, _ = job.id.partition("-")
    view = _VIEW_TYPES[prefix + dash](**job.context)
    collected = view.collected()
    for data in job.stream:
        event = decode(data)
        if not isinstance(event, EndEvent):
            collected.add(event)
    return HTTPStatus.OK, collected.response(job.usage)
