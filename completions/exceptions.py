"""The API's errors as exceptions, and OpenAI's envelope around them."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from rest_framework import exceptions as drf

from completions.contract.error_codes import ERRORS

CONTEXT_EXCEEDED = "context_length_exceeded"
MESSAGES_ROOT: Final = "/v1/messages/"
"""The beginning of the paths of Anthropic's Messages API; the shortest ends before the slash."""
_MESSAGES_TYPES: Final[Mapping[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.CONFLICT: "conflict_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.INTERNAL_SERVER_ERROR: "api_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
"""Types of errors of that API by status; `invalid_request_error` for any other one."""


class APIError(drf.APIException):
    """An error that a client sees. `name` selects its status, type and headers in the table of
    :mod:`completions.contract.error_codes`, and its message unless a more specific one is given.

    `param` is a path into the request body. `headers` are added to the table's, and override
    them.
    """

    def __init__(
        self,
        name: str,
        message: str = "",
        param: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        kind = ERRORS[name]
        self.code = kind.code or name
        self.message = message or kind.message
        super().__init__(self.message, self.code)
        self.status_code = kind.status
        self.type = kind.type
        self.param = param
        self.ends_job = False
        """Whether a job ended with this error: usage counts it, and the request was not refused."""
        self.headers = {**kind.headers, **(headers or {})}

    def envelope(self, path: str = "", request_id: str = "") -> dict[str, object]:
        """Return the body, the same for responses, event streams, batch lines and stored jobs, in
        the shape of the API that has `path`."""
        if f"{path}/".startswith(MESSAGES_ROOT):
            kind = _MESSAGES_TYPES.get(self.status_code, "invalid_request_error")
            details = {"error_code": self.code, "param": self.param}
            shown = {"type": kind, "message": self.message, "details": details}
            return {"type": "error", "error": shown, "request_id": request_id or None}
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}


class FieldError(Exception):
    """One value of a body is wrong. Callers prepend to its path, from the inside out."""

    def __init__(self, message: str, path: str = "", code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message, self.path, self.code = message, path, code

    def inside(self, name: str) -> None:
        """Prepend a key of this name to the path."""
        separator = "." if self.path and self.path[0] != "[" else ""
        self.path = f"{name}{separator}{self.path}"

    def api_error(self) -> APIError:
        where = self.path or "the body"
        # Some clients compare the first words of this message, so that no path precedes them.
        message = self.message if self.code == CONTEXT_EXCEEDED else f"{where}: {self.message}"
        return APIError(self.code, message, self.path or None)


def from_job_error(code: str, detail: str = "") -> APIError:
    """Return the error that the client of a failed job gets.

    `detail` is the worker's message. A code that is not in the table comes from a worker of another
    version, and becomes `worker_error`.
    """
    name = code if code in ERRORS else "worker_error"
    error = APIError(name, detail if ERRORS[name].shows_detail else "")
    error.ends_job = True
    return error


def invalid_parameter(name: str, given: str, expected: str) -> APIError:
    """Return a 400 for a query parameter or header. `expected` describes the valid values."""
    return APIError("invalid_value", f"{name} is {given[:80]!r}; it must be {expected}.", name)


def payload_too_large(limit: int) -> APIError:
    """Return a 413 for a body of more than `limit` bytes."""
    message = f"The request body is larger than {limit} bytes. Split it into several requests."
    return APIError("payload_too_large", message)
