"""Lines of batches as the live requests that they stand for: checked alike, answered alike."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from completions.accounts.keys import Principal
from completions.batches.lines import PreparedLine
from completions.batches.validation import LineError
from completions.endpoints import chat, completions
from completions.endpoints.jobs import Prepared
from completions.http.error_handlers import api_error
from completions.jobs.ended import EndedJob
from completions.jobs.events import EndEvent, decode
from completions.responses.chat import ChatView
from completions.responses.completion import View
from completions.responses.job_errors import from_job_error


class Endpoint(NamedTuple):
    """What a batch may consist of."""

    prepare: Callable[[Any, Principal], Awaitable[Prepared]]
    view_type: type[View]


ENDPOINTS: Mapping[str, Endpoint] = {
    endpoint.view_type.path: endpoint
    for endpoint in (Endpoint(completions.prepare, View), Endpoint(chat.prepare, ChatView))
}


async def prepare(endpoint: str, job_id: str, body: Any, principal: Principal) -> PreparedLine:
    """A line's job. Raises LineError for the client's faults, and APIError for the service's."""
    try:
        prepared = await ENDPOINTS[endpoint].prepare(body, principal)
    except Exception as exc:
        error = api_error(exc)
        if error.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise error from exc
        param = f"body.{error.param}" if error.param else "body"
        raise LineError(error.code, error.message, param) from exc
    for name, given in (("stream", prepared.stream), ("background", prepared.background)):
        if given:
            message = f"{name}: a line of a batch is neither streamed nor polled; leave it out."
            raise LineError("invalid_request", message, f"body.{name}")
    view = dataclasses.replace(prepared.view, id=job_id)
    return PreparedLine(view.served_model, view.as_dict(), prepared.request)


def respond(job: EndedJob) -> tuple[int, dict[str, Any]]:
    """The status and body that a live request which ended so would have got."""
    if job.error is not None:
        error = from_job_error(job.error.code, job.error.message)
        return error.status_code, error.envelope()
    collected = _view(job).collected()
    for data in job.events:
        event = decode(data)
        if not isinstance(event, EndEvent):
            collected.add(event)
    return HTTPStatus.OK, collected.response(job.usage)


def _view(job: EndedJob) -> View:
    types = (endpoint.view_type for endpoint in ENDPOINTS.values())
    of_this_job = next(each for each in types if job.id.startswith(each.id_prefix))
    return of_this_job(**(job.view or {}))
