"""The API's error codes: status, type, default message and retry hint of each, in one table.

The web tier, the engine and the Lua scripts name an error by its code; all else about it is looked
up here. Codes and types follow https://platform.openai.com/docs/guides/error-codes where OpenAI has
an equivalent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final

from completions.contract.limits import LIMITS

INVALID_REQUEST: Final = "invalid_request_error"
SERVER_ERROR: Final = "server_error"

# OpenAI's clients retry 408, 409, 429 and 5xx by themselves; `x-should-retry` overrides that.
NEVER: Final[Mapping[str, str]] = {"x-should-retry": "false"}
_AGAIN: Final[Mapping[str, str]] = {"x-should-retry": "true"}


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """What all errors with one code have in common."""

    status: HTTPStatus
    type: str
    message: str
    """Sent unless the error has its own message, which names the invalid value."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the response: whether and when to retry, or how to authenticate."""
    code: str | None = None
    """The code that clients see, where several entries share one; otherwise the entry's name."""
    shows_detail: bool = True
    """Whether clients see the worker's message. It may reveal internals."""


def _make_retry_after(seconds: int) -> Mapping[str, str]:
    return {"Retry-After": str(seconds)}


_make_request_error = partial(ErrorKind, HTTPStatus.BAD_REQUEST, INVALID_REQUEST)
_make_key_error = partial(
    ErrorKind, HTTPStatus.UNAUTHORIZED, INVALID_REQUEST, headers={"WWW-Authenticate": "Bearer"}
)
_make_not_found_error = partial(ErrorKind, HTTPStatus.NOT_FOUND, INVALID_REQUEST)
_make_conflict = partial(ErrorKind, HTTPStatus.CONFLICT, INVALID_REQUEST, headers=NEVER)
_make_limit_error = partial(ErrorKind, HTTPStatus.TOO_MANY_REQUESTS)
_make_failure = partial(
    ErrorKind, HTTPStatus.INTERNAL_SERVER_ERROR, SERVER_ERROR, shows_detail=False
)
_make_unavailable = partial(
    ErrorKind,
    HTTPStatus.SERVICE_UNAVAILABLE,
    SERVER_ERROR,
    headers=_make_retry_after(1),
    shows_detail=False,
)
_make_timeout = partial(ErrorKind, HTTPStatus.GATEWAY_TIMEOUT, SERVER_ERROR, shows_detail=False)

ERRORS: Final[Mapping[str, ErrorKind]] = {
    # 400: a field of the request
    "invalid_request": _make_request_error("The request is malformed."),
    "invalid_json": _make_request_error("The body is not valid JSON."),
    "invalid_type": _make_request_error("A field has a value of the wrong type."),
    "invalid_value": _make_request_error("A field has a value that it cannot take."),
    "unsupported_value": _make_request_error(
        "A field has a value that this server does not support."
    ),
    "unsupported_parameter": _make_request_error(
        "This server does not support a field of the request."
    ),
    "unsupported_operation": _make_request_error("This server does not support this operation."),
    "websocket_connection_limit_reached": _make_request_error(
        "A WebSocket connection lasts for at most 60 minutes. Open another one."
    ),
    "unknown_parameter": _make_request_error("The request has a field that does not exist."),
    "missing_required_parameter": _make_request_error("The request lacks a required field."),
    "conflicting_constraints": _make_request_error("The request has more than one constraint."),
    "integer_below_min_value": _make_request_error("An integer is below the field's minimum."),
    "integer_above_max_value": _make_request_error("An integer is above the field's maximum."),
    "decimal_below_min_value": _make_request_error("A number is below the field's minimum."),
    "decimal_above_max_value": _make_request_error("A number is above the field's maximum."),
    "empty_array": _make_request_error("An array is empty but needs an element."),
    "array_above_max_length": _make_request_error("An array has too many elements."),
    "invalid_token_id": _make_request_error("The prompt has an id that is not in the vocabulary."),
    "mixed_prompt": _make_request_error("The prompt mixes texts and token ids."),
    "text_prompt_not_supported": _make_request_error("This model takes prompts of token ids only."),
    "unsupported_content_type": _make_request_error("A message has a part of an unsupported type."),
    "previous_response_not_found": _make_request_error(
        "The previous response was not stored, was deleted or has expired."
    ),
    "context_length_exceeded": _make_request_error(
        "The prompt and max_tokens together exceed the model's context length."
    ),
    "unsupported_adapter": _make_request_error(
        "The LoRA adapter needs something that the model or this server does not do."
    ),
    "adapter_already_loaded": _make_request_error("An adapter of this name is loaded already."),
    "invalid_file_purpose": _make_request_error("The file has a different purpose."),
    "storage_limit_exceeded": _make_request_error(
        "Your organization's files have reached their storage limit."
    ),
    # 400: the input file of a batch. These and the codes above go to the batch's `errors`, not to a
    # response.
    "empty_file": _make_request_error("The file has no requests."),
    "too_many_tasks": _make_request_error("The file has too many requests. Split it."),
    "line_too_long": _make_request_error("A line of the file is too long. Shorten it."),
    "invalid_json_line": _make_request_error("A line of the file is not a JSON object."),
    "url_mismatch": _make_request_error(
        "A line of the file has a url that is not the batch's endpoint."
    ),
    "duplicate_custom_id": _make_request_error("Two lines of the file have the same custom_id."),
    "grammar_budget_exceeded": _make_request_error(
        "Checking the file's constraints takes too long. Split it, or send simpler ones."
    ),
    "token_limit_exceeded": _make_request_error(
        "The batches of this API key or your organization hold too many enqueued tokens. Try "
        "again once some of them have ended."
    ),
    "window_too_short": _make_request_error(
        "The request would probably not end in its completion_window. Send a longer one."
    ),
    # 400: the constraint
    "invalid_grammar": _make_request_error(
        "The constraint is too complex for this model's vocabulary. Simplify it."
    ),
    "grammar_timeout": _make_request_error("Checking the constraint took too long. Simplify it."),
    "grammar_error": _make_request_error(
        "The grammar could not be followed to its end. Simplify the constraint and retry."
    ),
    # 401, 403, 404
    "missing_api_key": _make_key_error("The request has no API key."),
    "invalid_api_key": _make_key_error("The API key is incorrect."),
    "api_key_revoked": _make_key_error(
        "The API key was revoked, or its organization is suspended."
    ),
    "api_key_expired": _make_key_error("The API key has expired."),
    "invalid_metrics_token": _make_key_error(
        "Send QUIRE_METRICS_TOKEN in Authorization: Bearer ..."
    ),
    "permission_denied": ErrorKind(
        HTTPStatus.FORBIDDEN, "permission_error", "You may not do this."
    ),
    "not_found": _make_not_found_error(
        "There is nothing at this path. GET /v1/openapi.json lists every path."
    ),
    # An id that is unknown, has expired or belongs to another organization gets the same error.
    "model_not_found": _make_not_found_error("The model does not exist."),
    "adapter_not_found": _make_not_found_error("The model has no such adapter."),
    "completion_not_found": _make_not_found_error("No such completion, or its result has expired."),
    "response_not_found": _make_not_found_error(
        "No such response, or it was not stored or has expired."
    ),
    "conversation_not_found": _make_not_found_error("No such conversation, or it has expired."),
    "item_not_found": _make_not_found_error("No such item."),
    "file_not_found": _make_not_found_error("No such file, or it has expired."),
    "upload_not_found": _make_not_found_error("No such upload, or it has expired."),
    "batch_not_found": _make_not_found_error("No such batch."),
    "session_not_found": _make_not_found_error("No such session, or it has expired."),
    # Other HTTP errors
    "method_not_allowed": ErrorKind(
        HTTPStatus.METHOD_NOT_ALLOWED,
        INVALID_REQUEST,
        "This path does not support the method. The Allow header lists those that it does.",
    ),
    "request_timeout": ErrorKind(
        HTTPStatus.REQUEST_TIMEOUT,
        INVALID_REQUEST,
        "The request body arrived too slowly or incompletely. Send it again.",
    ),
    "payload_too_large": ErrorKind(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        INVALID_REQUEST,
        "The request body is too large. Split it into several requests.",
    ),
    "unsupported_media_type": ErrorKind(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        INVALID_REQUEST,
        "Send the body with the header Content-Type: application/json.",
    ),
    "headers_too_large": ErrorKind(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        INVALID_REQUEST,
        "The request's head is too large.",
    ),
    "range_not_satisfiable": ErrorKind(
        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
        INVALID_REQUEST,
        "The range begins after the end of the file.",
    ),
    # 409, 422: the state of the requested object
    "idempotency_in_progress": _make_conflict(
        "The first request with this Idempotency-Key is still running. Retry to get its answer.",
        headers=_make_retry_after(1),
    ),
    "completion_in_progress": _make_conflict("The completion has not ended. Cancel it first."),
    "conversation_locked": _make_conflict(
        "A response of this conversation has not ended, or ended this moment. Retry once it has.",
        headers=_make_retry_after(1),
    ),
    "response_in_progress": _make_conflict(
        "A response of this connection has not ended. Wait for its last event, or open another "
        "connection.",
    ),
    "completion_in_session": _make_conflict(
        "The completion is a turn of a session. Delete the session."
    ),
    "turn_in_progress": _make_conflict(
        "The turn has not ended. Wait for it, or send `after` with a choice that has.",
        headers=_make_retry_after(1),
    ),
    "session_drift": _make_conflict(
        "The model's chat template writes earlier messages in another way now."
    ),
    "file_in_use": _make_conflict("A batch that has not ended needs this file."),
    "upload_not_pending": _make_conflict("The upload takes no more parts."),
    "nothing_to_resubmit": _make_conflict(
        "Only a batch that has ended with unfinished lines can be sent again."
    ),
    "nothing_to_export": _make_conflict("Only a batch that ended with results can be exported."),
    "idempotency_key_reused": ErrorKind(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        INVALID_REQUEST,
        "This Idempotency-Key was used for another request. Use a new one for each request.",
    ),
    "empty_summary": ErrorKind(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        INVALID_REQUEST,
        "The model wrote no summary of the conversation. Use another model.",
    ),
    # 429: limits. The error's type, as with OpenAI, names what is limited.
    **{
        limit.error: _make_limit_error(limit.error_type, limit.summary, code=limit.error_code)
        for limit in LIMITS
    },
    "batch_limit_exceeded": _make_limit_error(
        "requests", "Your organization has too many batch lines waiting.", _make_retry_after(60)
    ),
    "insufficient_quota": _make_limit_error(
        "insufficient_quota", "You exceeded your current quota.", NEVER
    ),
    "queue_full": _make_limit_error(
        "overloaded_error",
        "This API key has too many requests waiting or running.",
        _make_retry_after(1),
    ),
    "too_many_web_sockets": _make_limit_error(
        "requests", "This API key has too many WebSocket connections open.", _make_retry_after(60)
    ),
    # 500, 503, 504: the server
    "internal_error": _make_failure(
        "The server failed to handle the request. It was logged; retry, and quote the "
        "x-request-id header if it happens again."
    ),
    "worker_error": _make_failure("The worker running this request was lost. Retry the request."),
    "processor_error": _make_failure(
        "The custom logit processor failed on this request, and would fail on it again. Ask your "
        "administrator: the worker's log has the cause.",
        NEVER,
        shows_detail=True,
    ),
    "invalid_logits": _make_failure(
        "The model computed logits that are not numbers for this request, and would do so again. "
        "Change the request, or ask your administrator to check the model.",
        NEVER,
    ),
    "server_overloaded": _make_unavailable(
        "The queue is full. Retry after the time given in Retry-After."
    ),
    "adapters_overloaded": _make_unavailable(
        "LoRA adapters of running jobs take the memory that this one needs. Retry after the time "
        "given in Retry-After.",
        code="server_overloaded",
    ),
    "server_shutting_down": _make_unavailable("The server is shutting down. Retry the request."),
    "model_loading": _make_unavailable(
        "No worker serves this model at the moment. Retry later. Requests with "
        '"background": true run once one does.',
        headers=_make_retry_after(5),
    ),
    "queue_unavailable": _make_unavailable("The queue cannot be reached. Retry in a moment."),
    "database_unavailable": _make_unavailable("The database cannot be reached. Retry in a moment."),
    "storage_full": _make_unavailable(
        "There is no room for files at the moment. Retry later.", headers=_make_retry_after(60)
    ),
    "queue_timeout": _make_timeout(
        "No worker was free before the request's deadline. Retry later. Requests with "
        '"background": true wait longer, and need no open connection.',
        _AGAIN,
    ),
    "generation_timeout": _make_timeout(
        "The completion did not end before the request's deadline. Lower max_tokens. Requests "
        'with "background": true have a later deadline.',
        NEVER,
    ),
}
