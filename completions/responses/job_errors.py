"""What a client is told of a job that failed, by the code it failed with."""

from collections.abc import Callable, Mapping
from http import HTTPStatus

from completions.errors import SERVER_ERROR, APIError, InvalidRequest, Overloaded


def _gateway_timeout(code: str, retry: bool) -> Callable[[str], APIError]:
    headers = {"x-should-retry": "true" if retry else "false"}
    return lambda message: APIError(
        HTTPStatus.GATEWAY_TIMEOUT, SERVER_ERROR, code, message, headers=headers
    )


def _server_error(code: str, headers: Mapping[str, str] | None = None) -> Callable[[str], APIError]:
    return lambda message: APIError(
        HTTPStatus.INTERNAL_SERVER_ERROR, SERVER_ERROR, code, message, headers=headers
    )


def _unavailable(code: str) -> Callable[[str], APIError]:
    return lambda message: Overloaded(code, message)


def _invalid(code: str) -> Callable[[str], APIError]:
    return lambda message: InvalidRequest(code, message)


# The codes with which jobs fail, in the queue or in the engine, and what a client is told.
_JOB_ERRORS: Mapping[str, tuple[Callable[[str], APIError], str]] = {
    "queue_timeout": (
        _gateway_timeout("queue_timeout", retry=True),
        "No worker was free before the request's deadline. Retry later, or, unless it is "
        'already, submit it with "background": true to wait without a connection.',
    ),
    "generation_timeout": (
        _gateway_timeout("generation_timeout", retry=False),
        "The completion did not end before the request's deadline. Ask for fewer tokens, or, "
        'unless it is already, submit it with "background": true.',
    ),
    "worker_error": (
        _server_error("worker_error"),
        "The worker running this request was lost. Retry the request.",
    ),
    "grammar_error": (
        _invalid("grammar_error"),
        "The grammar could not be followed to its end. Simplify the constraint and retry.",
    ),
    "invalid_grammar": (
        _invalid("invalid_grammar"),
        "The constraint is too complex for this model's vocabulary. Simplify it.",
    ),
    "queue_full": (
        _unavailable("server_overloaded"),
        "The queue is full. Retry after the time given in Retry-After.",
    ),
    "server_shutting_down": (
        _unavailable("server_shutting_down"),
        "The server is shutting down. Retry the request.",
    ),
    "invalid_request": (
        _invalid("invalid_value"),
        "The engine refused the request.",
    ),
    "context_length_exceeded": (
        _invalid("context_length_exceeded"),
        "The prompt and max_tokens together exceed the model's context length.",
    ),
}
_JOB_ERROR_ALIASES = {
    "server_overloaded": "queue_full",
    "engine_error": "worker_error",
}


def from_job_error(code: str, message: str = "") -> APIError:
    """What a client sees of a job that failed with `code`. Unknown codes are a worker's fault.

    Messages of 4xx codes explain the request and are passed on; those of 5xx codes may hold
    internals, so the client gets ours.
    """
    known = _JOB_ERROR_ALIASES.get(code, code)
    build, text = _JOB_ERRORS.get(known, _JOB_ERRORS["worker_error"])
    error = build(text)
    if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR and message:
        return build(message)
    return error
