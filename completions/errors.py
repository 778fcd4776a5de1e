"""The API's errors as exceptions, and OpenAI's envelope around them."""

from collections.abc import Mapping
from typing import Any

from rest_framework import exceptions as drf

from completions.contract.errors import ERRORS


class APIError(drf.APIException):
    """An error that a client sees. The table of :mod:`completions.contract.errors` gives its
    status, type and headers by `name`, and its message unless there is one that says more.

    `param` is a path into the request body. `headers` are sent beside the table's, and override
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
        self.headers = {**kind.headers, **(headers or {})}

    def envelope(self) -> dict[str, Any]:
        """The body for responses, event streams, batch lines and stored jobs alike."""
        error = {
            "message": self.message, "type": self.type, "param": self.param, "code": self.code,
        }  # fmt: skip
        return {"error": error}


class FieldError(Exception):
    """One value of a body is wrong. Callers add its place, from the inside out."""

    def __init__(self, code: str, message: str, path: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path

    def inside(self, name: str) -> None:
        """Note that the place so far lies under a key of this name."""
        separator = "." if self.path and self.path[0] != "[" else ""
        self.path = f"{name}{separator}{self.path}"

    def api_error(self) -> APIError:
        where = self.path or "the body"
        return APIError(self.code, f"{where}: {self.message}", self.path or None)


def from_job_error(code: str, detail: str = "") -> APIError:
    """The error that the client of a failed job gets.

    `detail` is the worker's message. Codes that are not in the table come from a worker of
    another version and read as `worker_error`.
    """
    name = code if code in ERRORS else "worker_error"
    return APIError(name, detail if ERRORS[name].shows_detail else "")


def payload_too_large(limit: int) -> APIError:
    """A 413 for a body of more than `limit` bytes."""
    message = f"The request body is larger than {limit} bytes. Split it into several requests."
    return APIError("payload_too_large", message)
