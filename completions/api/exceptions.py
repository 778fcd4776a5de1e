"""The API's errors, and the one place where any exception becomes OpenAI's error envelope."""
# ruff: noqa: N818 - names as in the hierarchy of DRF

import errno
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import orjson
from django.conf import settings
from django.core.exceptions import (
    PermissionDenied as DjangoPermissionDenied,
)
from django.core.exceptions import (
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.views import defaults
from redis.exceptions import RedisError
from rest_framework import exceptions as drf
from rest_framework.response import Response

from completions.api import access_log
from completions.grammars.exceptions import GrammarError, GrammarOverloadError
from completions.model_files import ModelFilesError

logger = logging.getLogger(__name__)

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
_FOR_BROWSERS = ("/admin", "/docs", "/static")
DO_NOT_RETRY: Mapping[str, str] = {"x-should-retry": "false"}
RETRY_SOON: Mapping[str, str] = {"Retry-After": "1"}


def envelope(
    message: str, type: str = INVALID_REQUEST, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """OpenAI's error body, for responses, event streams, batch lines and stored jobs alike."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


class APIError(drf.APIException):
    """An error that a client sees. `status` is HTTP's; `param` is a path into the request body."""

    def __init__(
        self,
        status: int,
        type: str,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, code)
        self.status_code = status
        self.type = type
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})

    def envelope(self) -> dict[str, Any]:
        return envelope(self.message, self.type, self.code, self.param)


class InvalidRequest(APIError):
    """400: the client must change the request."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, INVALID_REQUEST, code, message, param=param)


class FieldError(Exception):
    """One value of a body is wrong. Whoever holds it adds where it lies, from the inside out."""

    def __init__(self, code: str, message: str, path: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path

    def inside(self, name: str) -> None:
        """Note that the place so far lies under a key of this name."""
        separator = "." if self.path and self.path[0] != "[" else ""
        self.path = f"{name}{separator}{self.path}"

    def api_error(self) -> InvalidRequest:
        where = self.path or "the body"
        return InvalidRequest(self.code, f"{where}: {self.message}", self.path or None)


class Unauthorized(APIError):
    """401: no usable API key."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(
            HTTPStatus.UNAUTHORIZED, INVALID_REQUEST, code, message,
            headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip


class PermissionDenied(APIError):
    """403: a good key that may not do this."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(
            HTTPStatus.FORBIDDEN, "permission_error", "permission_denied", message, param=param
        )


class NotFound(APIError):
    """404: unknown, expired or another organization's; which of them is not told."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(HTTPStatus.NOT_FOUND, INVALID_REQUEST, code, message, param=param)


class RateLimited(APIError):
    """429: a limit of the API key is reached. `limit` is requests, tokens or concurrency."""

    def __init__(self, limit: str, message: str) -> None:
        concurrent = limit == "concurrency"
        super().__init__(
            HTTPStatus.TOO_MANY_REQUESTS,
            "requests" if concurrent else limit,
            "concurrency_limit_exceeded" if concurrent else "rate_limit_exceeded",
            message,
        )


class Overloaded(APIError):
    """503: nothing is wrong with the request, the service cannot take it now."""

    def __init__(self, code: str, message: str, retry_after: int = 1) -> None:
        super().__init__(
            HTTPStatus.SERVICE_UNAVAILABLE, SERVER_ERROR, code, message,
            headers={"Retry-After": str(retry_after)},
        )  # fmt: skip


class InternalError(APIError):
    """500: ours to repair; the cause goes to the log, not to the client."""

    def __init__(self) -> None:
        super().__init__(
            HTTPStatus.INTERNAL_SERVER_ERROR, SERVER_ERROR, "internal_error",
            "The server failed to handle the request. It was logged; retry, and quote the "
            "x-request-id header if it happens again.",
        )  # fmt: skip


# Errors of jobs --------------------------------------------------------------------------------


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
        "No worker was free before the request's deadline. Retry later, or submit it with "
        '"background": true to wait without a connection.',
    ),
    "generation_timeout": (
        _gateway_timeout("generation_timeout", retry=False),
        "The completion did not end before the request's deadline. Ask for fewer tokens, or submit "
        'it with "background": true.',
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
    "deadline_exceeded": "generation_timeout",
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


# Exceptions of others --------------------------------------------------------------------------


def _grammar(exc: GrammarError) -> APIError:
    if isinstance(exc, GrammarOverloadError):
        return Overloaded("server_overloaded", str(exc))
    return InvalidRequest(exc.code, str(exc), exc.field)


def _model_files(exc: ModelFilesError) -> APIError:
    logger.error("%s", exc)
    return Overloaded(
        "model_loading", "The model's files are not in place yet. Retry in a minute.", 60
    )


def _unreachable(code: str, what: str) -> Callable[[Exception], APIError]:
    def translate(exc: Exception) -> APIError:
        logger.error("%s: %s", what, exc)
        return Overloaded(code, f"{what}. Retry in a moment.")

    return translate


_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_disk_full(exc: BaseException) -> bool:
    return isinstance(exc, OSError) and exc.errno in _DISK_FULL


def _os_error(exc: OSError) -> APIError:
    if not is_disk_full(exc):
        logger.error("unforeseen %s", type(exc).__name__, exc_info=exc)
        return InternalError()
    logger.error("no room for files: %s", exc)
    return Overloaded(
        "storage_full", "There is no room for files at the moment. Retry later.", retry_after=60
    )


def _not_found(exc: Http404) -> APIError:
    return NotFound(
        "not_found", "There is nothing at this path. GET /v1/openapi.json lists all that there are."
    )


def _astray() -> APIError:
    """A path that the API does not have."""
    return NotFound(
        "not_found",
        "There is nothing at this path: those of the API begin with /v1/. Clients are given a base "
        "URL that ends with /v1.",
    )


def _method_not_allowed(exc: drf.MethodNotAllowed) -> APIError:
    return APIError(
        HTTPStatus.METHOD_NOT_ALLOWED, INVALID_REQUEST, "method_not_allowed",
        f"{exc.detail} The Allow header lists what is.",
    )  # fmt: skip


def _unsupported_media_type(exc: drf.UnsupportedMediaType) -> APIError:
    return APIError(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, "unsupported_media_type",
        "Send the body with the header Content-Type: application/json.",
    )  # fmt: skip


def payload_too_large(limit: int) -> APIError:
    return APIError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, INVALID_REQUEST, "payload_too_large",
        f"The request body is larger than {limit} bytes. Split it into several requests.",
    )  # fmt: skip


def body_too_slow() -> APIError:
    return APIError(
        HTTPStatus.REQUEST_TIMEOUT, INVALID_REQUEST, "request_timeout",
        "The request body came too slowly, or not to its end. Send it again.",
    )  # fmt: skip


def malformed_query() -> APIError:
    return InvalidRequest(
        "invalid_request", "The query string is not ASCII: percent-encode UTF-8 in it."
    )


def _too_big(exc: RequestDataTooBig) -> APIError:
    return payload_too_large(settings.MAX_BODY_BYTES)


def _drf(exc: drf.APIException) -> APIError:
    if exc.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return InternalError()
    return APIError(exc.status_code, INVALID_REQUEST, "invalid_request", str(exc.detail))


_Kinds = type[Exception] | tuple[type[Exception], ...]
_TRANSLATIONS: tuple[tuple[_Kinds, Callable[[Any], APIError]], ...] = (
    (GrammarError, _grammar),
    (ModelFilesError, _model_files),
    (RedisError, _unreachable("queue_unavailable", "The queue cannot be reached")),
    (
        # The second of a connection that broke earlier in the same request.
        (OperationalError, InterfaceError),
        _unreachable("database_unavailable", "The database cannot be reached"),
    ),
    (OSError, _os_error),
    (Http404, _not_found),
    (drf.NotFound, _not_found),
    (drf.MethodNotAllowed, _method_not_allowed),
    (drf.UnsupportedMediaType, _unsupported_media_type),
    (RequestDataTooBig, _too_big),
    (DjangoPermissionDenied, lambda _: PermissionDenied("You may not do this.")),
    (SuspiciousOperation, lambda _: InvalidRequest("invalid_request", "Malformed request.")),
    (drf.APIException, _drf),
)


def api_error(exc: Exception) -> APIError:
    """What a client sees of any exception. One nobody foresaw is logged with its traceback."""
    if isinstance(exc, APIError):
        return exc
    for kind, translate in _TRANSLATIONS:
        if isinstance(exc, kind):
            return translate(exc)
    logger.error("unforeseen %s", type(exc).__name__, exc_info=exc)
    return InternalError()


def handle(exc: Exception, context: Mapping[str, Any]) -> Response:
    """DRF's exception handler."""
    error = api_error(exc)
    access_log.note(code=error.code)
    return Response(error.envelope(), status=error.status_code, headers=error.headers)


def response(exc: Exception) -> HttpResponse:
    """The same outside of DRF: middleware, URL handlers."""
    error = api_error(exc)
    access_log.note(code=error.code)
    return HttpResponse(
        orjson.dumps(error.envelope()),
        status=error.status_code,
        content_type="application/json",
        headers=error.headers,
    )


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Django's handler404: its page for browsers, an envelope for clients that lost their way."""
    if request.path_info.startswith(_FOR_BROWSERS):
        return defaults.page_not_found(request, exception)
    return response(Http404() if request.path_info.startswith("/v1/") else _astray())


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Django's handler400, likewise."""
    if request.path_info.startswith("/v1/"):
        return response(exception)
    return defaults.bad_request(request, exception)


def server_error(request: HttpRequest) -> HttpResponseBase:
    """Django's handler500, likewise; Django has logged the exception."""
    if request.path_info.startswith("/v1/"):
        return response(InternalError())
    return defaults.server_error(request)
