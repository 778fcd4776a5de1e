"""The API's errors: each knows its status, its headers and OpenAI's envelope."""
# ruff: noqa: N818 - names as in the hierarchy of DRF

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from rest_framework import exceptions as drf

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
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
