"""The work that a stored home has: what was sent, and what has to come of it."""

from collections.abc import Mapping
from typing import Any

from benchmarks.service.scripted_worker import token
from tests.acceptance.service import MODEL

LINES, JOBS, ENDED, SHORT = 400, 80, 12, 10
"""Lines of the open batch, open background jobs, background jobs with results in SQL, and those
whose results are in Redis only."""
PRICES = "[models.PRICED.prices]\nprompt = 3\ncompletion = 5\n"
"""Per million tokens."""


def line_body(number: int) -> dict[str, Any]:
    """The body of a line, from 0."""
    return _body(number, prompt=2 + number % 5, max_tokens=1 + number % 8)


def job_body(number: int) -> dict[str, Any]:
    """The body of an open background job."""
    return _body(1000 + number, prompt=3, max_tokens=40) | {"background": True}


def ended_body(number: int) -> dict[str, Any]:
    return _body(2000 + number, prompt=4, max_tokens=3) | {"background": True}


def short_body(number: int) -> dict[str, Any]:
    return _body(3000 + number, prompt=1, max_tokens=2) | {"background": True}


def _body(seed: int, prompt: int, max_tokens: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": [100 + (seed + each) % 50 for each in range(prompt)],
        "max_tokens": max_tokens,
        "seed": seed,
    }


def expected_text(body: Mapping[str, Any]) -> str:
    """The text that a scripted engine gives, whichever processes were killed meanwhile."""
    return "".join(chr(token(body["seed"], 0, at)) for at in range(body["max_tokens"]))


def expected_usage(body: Mapping[str, Any]) -> dict[str, int]:
    prompt, completion = len(body["prompt"]), body["max_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
