"""A line's body becomes a job, with the checks of a live request and what a line cannot have."""

from typing import Any, cast

from msgspec import structs

from completions.accounts.keys import Principal
from completions.exceptions import APIError
from completions.grammars import Caller
from completions.requests import preparation
from completions.requests.fair_semaphore import Checks
from completions.requests.preparation import PreparedRequest
from completions.responses.response_object import ItemsResponseContext


async def prepare_line(
    checks: Checks,
    endpoint: str,
    job_id: str,
    body: object,
    principal: Principal,
    caller: Caller | None = None,
) -> PreparedRequest:
    """Prepare a line's job. Raises APIError."""
    prepared = await preparation.prepare_offline(checks, endpoint, body, principal, job_id, caller)
    for name in ("stream", "background"):
        if getattr(prepared.request.returns, name):
            message = f"{name}: a line of a batch is neither streamed nor polled; leave it out."
            raise APIError("invalid_request", message, name)
    deadline = prepared.request.deadline
    if name := "" if deadline is None else deadline.in_background:
        raise APIError("invalid_request", f"{name}: a batch has one; send it there.", name)
    return prepared if prepared.request.response is None else _unlink(prepared, body)


def _unlink(prepared: PreparedRequest, body: Any) -> PreparedRequest:
    """Return a line of `/v1/responses` as one that is not stored. Raises APIError."""
    for name in ("previous_response_id", "conversation"):
        if body.get(name) is not None:
            message = f"{name}: a line of a batch goes on from nothing stored; send all items."
            raise APIError("invalid_request", message, name)
    context = cast("ItemsResponseContext", prepared.context)
    ignored = [*context.ignored_params, *(["store"] if body.get("store") else ())]
    shown = {**context.shown, "store": False}
    context = structs.replace(context, shown=shown, ignored_params=ignored)
    return prepared._replace(context=context)
