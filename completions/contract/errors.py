"""The API's error codes: status, type, default message and retry hint of each, in one table.

The web tier, the engine and the Lua scripts name an error by its code; everything else about it is
looked up here. Codes and types follow https://platform.openai.com/docs/guides/error-codes where
OpenAI has one for the same thing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

INVALID_REQUEST: Final = "invalid_request_error"
SERVER_ERROR: Final = "server_error"

# OpenAI's clients retry 408, 409, 429 and 5xx by themselves; `x-should-retry` overrides that.
_UNSAID: Mapping[str, str] = {}
NEVER: Final[Mapping[str, str]] = {"x-should-retry": "false"}
_AGAIN: Mapping[str, str] = {"x-should-retry": "true"}


def _after(seconds: int) -> Mapping[str, str]:
    return {"Retry-After": str(seconds)}


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """What every error with one code has in common."""

    status: HTTPStatus
    type: str
    message: str
    """Sent unless the error has a message of its own, which names the value at fault."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with it: whether and when to send the request again, or how to authenticate."""
    code: str | None = None
    """The code that clients see, where several entries share it; the entry's name otherwise."""
    shows_detail: bool = True
    """Whether clients see the message that a worker sends with the code. It may hold internals."""


def _request(message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> ErrorKind:
    """The client must change the request."""
    return ErrorKind(status, INVALID_REQUEST, message)


def _stranger(message: str) -> ErrorKind:
    """The request has no usable API key."""
    headers = {"WWW-Authenticate": "Bearer"}
    return ErrorKind(HTTPStatus.UNAUTHORIZED, INVALID_REQUEST, message, headers)


def _conflict(message: str, retry: Mapping[str, str] = NEVER) -> ErrorKind:
    """The request does not fit the state of what it names."""
    return ErrorKind(HTTPStatus.CONFLICT, INVALID_REQUEST, message, retry)


def _limit(
    message: str, type: str, retry: Mapping[str, str] = _UNSAID, code: str | None = None
) -> ErrorKind:
    """The caller has used up what it may."""
    return ErrorKind(HTTPStatus.TOO_MANY_REQUESTS, type, message, retry, code)


def _failure(
    message: str, retry: Mapping[str, str] = _UNSAID, shows_detail: bool = False
) -> ErrorKind:
    """The server failed; operators find the cause in the log."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return ErrorKind(status, SERVER_ERROR, message, retry, shows_detail=shows_detail)


def _unavailable(message: str, seconds: int = 1) -> ErrorKind:
    """Nothing is wrong with the request; the service cannot take it now."""
    status = HTTPStatus.SERVICE_UNAVAILABLE
    return ErrorKind(status, SERVER_ERROR, message, _after(seconds), shows_detail=False)


def _timeout(message: str, retry: Mapping[str, str]) -> ErrorKind:
    """The job did not end before its deadline."""
    status = HTTPStatus.GATEWAY_TIMEOUT
    return ErrorKind(status, SERVER_ERROR, message, retry, shows_detail=False)


_NOT_FOUND = HTTPStatus.NOT_FOUND

ERRORS: Final[Mapping[str, ErrorKind]] = {
    # 400: a field of the request
    "invalid_request": _request("The request is malformed."),
    "invalid_json": _request("The body is not valid JSON."),
    "invalid_type": _request("A field has a value of the wrong type."),
    "invalid_value": _request("A field has a value that it cannot take."),
    "unsupported_value": _request("A field has a value that this server does not support."),
    "unsupported_parameter": _request("This server does not support a field of the request."),
    "unknown_parameter": _request("The request has a field that does not exist."),
    "missing_required_parameter": _request("The request lacks a required field."),
    "conflicting_constraints": _request("The request has more than one constraint."),
    "integer_below_min_value": _request("An integer is below the field's minimum."),
    "integer_above_max_value": _request("An integer is above the field's maximum."),
    "decimal_below_min_value": _request("A number is below the field's minimum."),
    "decimal_above_max_value": _request("A number is above the field's maximum."),
    "empty_array": _request("An array is empty that needs an element."),
    "array_above_max_length": _request("An array has too many elements."),
    "invalid_token_id": _request("The prompt has an id that is not in the vocabulary."),
    "mixed_prompt": _request("The prompt mixes texts and token ids."),
    "text_prompt_not_supported": _request("This model takes prompts of token ids only."),
    "unsupported_content_type": _request("A message has a part of an unsupported type."),
    "context_length_exceeded": _request(
        "The prompt and max_tokens together exceed the model's context length."
    ),
    "invalid_file_purpose": _request("The file has another purpose."),
    "storage_limit_exceeded": _request("Your organization's files take all the space they may."),
    # 400: the constraint
    "invalid_grammar": _request(
        "The constraint is too complex for this model's vocabulary. Simplify it."
    ),
    "grammar_timeout": _request("Checking the constraint took too long. Simplify it."),
    "grammar_error": _request(
        "The grammar could not be followed to its end. Simplify the constraint and retry."
    ),
    # 401, 403, 404
    "missing_api_key": _stranger("The request has no API key."),
    "invalid_api_key": _stranger("The API key is incorrect."),
    "api_key_revoked": _stranger("The API key was revoked."),
    "api_key_expired": _stranger("The API key has expired."),
    "invalid_metrics_token": _stranger("Send QUIRE_METRICS_TOKEN in Authorization: Bearer ..."),
    "permission_denied": ErrorKind(
        HTTPStatus.FORBIDDEN, "permission_error", "You may not do this."
    ),
    "not_found": _request(
        "There is nothing at this path. GET /v1/openapi.json lists every path.", _NOT_FOUND
    ),
    # An unknown id, an expired one and another organization's read alike.
    "model_not_found": _request("The model does not exist.", _NOT_FOUND),
    "adapter_not_found": _request("The model has no such adapter.", _NOT_FOUND),
    "completion_not_found": _request("No such completion, or its result has expired.", _NOT_FOUND),
    "file_not_found": _request("No such file, or it has expired.", _NOT_FOUND),
    "batch_not_found": _request("No such batch.", _NOT_FOUND),
    # Other refusals of HTTP
    "method_not_allowed": _request(
        "This path does not have the method. The Allow header lists those that it has.",
        HTTPStatus.METHOD_NOT_ALLOWED,
    ),
    "request_timeout": _request(
        "The request body came too slowly, or not to its end. Send it again.",
        HTTPStatus.REQUEST_TIMEOUT,
    ),
    "payload_too_large": _request(
        "The request body is too large. Split it into several requests.",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ),
    "unsupported_media_type": _request(
        "Send the body with the header Content-Type: application/json.",
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    ),
    "headers_too_large": _request(
        "The request's head is too large.", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    ),
    # 409, 422: the state of what the request names
    "idempotency_in_progress": _conflict(
        "The first request with this Idempotency-Key is still running. Retry to get its answer.",
        _after(1),
    ),
    "completion_in_progress": _conflict("The completion has not ended. Cancel it first."),
    "file_in_use": _conflict("A batch that has not ended needs this file."),
    "nothing_to_resubmit": _conflict(
        "Only a batch that has ended with unfinished lines can be sent again."
    ),
    "idempotency_key_reused": _request(
        "This Idempotency-Key was used for another request. Draw a new one for each request.",
        HTTPStatus.UNPROCESSABLE_ENTITY,
    ),
    # 429: limits. OpenAI's type says what is limited.
    "request_rate_exceeded": _limit(
        "This API key sends too many requests per minute.", "requests", code="rate_limit_exceeded"
    ),
    "token_rate_exceeded": _limit(
        "This API key uses too many tokens per minute.", "tokens", code="rate_limit_exceeded"
    ),
    "concurrency_limit_exceeded": _limit("This API key has too many requests running.", "requests"),
    "batch_limit_exceeded": _limit(
        "Your organization has too many batch lines waiting.", "requests", _after(60)
    ),
    "insufficient_quota": _limit("You exceeded your current quota.", "insufficient_quota", NEVER),
    "queue_full": _limit(
        "This API key has too many requests waiting or running.", "overloaded_error", _after(1)
    ),
    # 500, 503, 504: the server
    "internal_error": _failure(
        "The server failed to handle the request. It was logged; retry, and quote the "
        "x-request-id header if it happens again."
    ),
    "worker_error": _failure("The worker running this request was lost. Retry the request."),
    "processor_error": _failure(
        "The custom logit processor failed on this request, and would fail on it again. Ask your "
        "administrator: the worker's log has the cause.",
        NEVER,
        shows_detail=True,
    ),
    "invalid_logits": _failure(
        "The model computed logits that are not numbers for this request, and would do so again. "
        "Change the request, or ask your administrator to check the model.",
        NEVER,
    ),
    "server_overloaded": _unavailable(
        "The queue is full. Retry after the time given in Retry-After."
    ),
    "server_shutting_down": _unavailable("The server is shutting down. Retry the request."),
    "model_loading": _unavailable(
        "No worker serves this model at the moment. Retry later, or send "
        '"background": true to have it run once one does.',
        5,
    ),
    "queue_unavailable": _unavailable("The queue cannot be reached. Retry in a moment."),
    "database_unavailable": _unavailable("The database cannot be reached. Retry in a moment."),
    "storage_full": _unavailable("There is no room for files at the moment. Retry later.", 60),
    "queue_timeout": _timeout(
        "No worker was free before the request's deadline. Retry later, or, unless it is "
        'already, submit it with "background": true to wait without a connection.',
        _AGAIN,
    ),
    "generation_timeout": _timeout(
        "The completion did not end before the request's deadline. Ask for fewer tokens, or, "
        'unless it is already, submit it with "background": true.',
        NEVER,
    ),
}
