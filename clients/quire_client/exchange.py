"""One request: its steps, its retries, its error.

A verb is a generator of steps, so that both classes share it: it yields what to send, and receives
the answer.
"""

from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

TRIES = 6
"""Tries of one request when the connection breaks or the server is overloaded."""
LONGEST_PAUSE = 30.0
"""Seconds between two tries, at most."""
_RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})

Body = dict[str, Any]
"""A JSON object, as the API documents it."""
_T = TypeVar("_T")


class QuireError(Exception):
    """An answer that is an error. `status` is 0 if the server did not answer."""

    def __init__(self, message: str, status: int = 0, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code

    @classmethod
    def from_response(cls, response: httpx.Response) -> "QuireError":
        try:
            error = response.json()["error"]
            return cls(str(error["message"]), response.status_code, error.get("code"))
        except (ValueError, KeyError, TypeError):
            return cls(response.text[:200] or response.reason_phrase, response.status_code)


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request. Its answer is the response, or httpx's TransportError."""

    method: str
    path: str
    body: Body | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] | None = None
    file: tuple[str, tuple[str, bytes]] | None = None
    """The field, the name and the content of a multipart file."""


@dataclass(frozen=True, slots=True)
class Save:
    """Download a file to `target`; with `resumes`, only the rest if `target` has its beginning. The
    answer is that of `Send`."""

    path: str
    target: Path
    resumes: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


Step = Send | Save | Pause
Answer = httpx.Response | httpx.TransportError
Verb = Generator[Step, Any, _T]
"""What a method of both classes does: it receives an `Answer` for each `Send` and `Save`."""


def request(
    method: str,
    path: str,
    body: Body | None = None,
    headers: Mapping[str, str] | None = None,
    **multipart: Any,
) -> Verb[Body]:
    """Return the JSON body of the answer."""
    step = Send(method, path, body, headers or {}, **multipart)
    answer: Body = (yield from retry(step)).json()
    return answer


def retry(step: Step) -> Verb[httpx.Response]:
    """Return a successful response, after retries if necessary. Raises QuireError."""
    for attempt in range(TRIES):
        answer: Answer = yield step
        if isinstance(answer, httpx.Response) and (answer.is_success or answer.status_code == 416):
            return answer
        pause = _compute_pause(attempt, answer)
        if pause is None:
            break
        yield Pause(pause)
    if isinstance(answer, httpx.Response):
        raise QuireError.from_response(answer)
    raise QuireError(f"the service does not answer: {answer!r}") from answer


def _compute_pause(attempt: int, answer: Answer) -> float | None:
    """Return seconds to wait before the next try; None if there is none."""
    if attempt + 1 >= TRIES:
        return None
    if isinstance(answer, httpx.Response):
        if answer.status_code not in _RETRIED or answer.headers.get("x-should-retry") == "false":
            return None
        with suppress(KeyError, ValueError):
            seconds = float(answer.headers["retry-after"])
            if seconds >= 0:  # nan is not
                return min(seconds, LONGEST_PAUSE)
    return min(0.5 * 2.0**attempt, LONGEST_PAUSE)
