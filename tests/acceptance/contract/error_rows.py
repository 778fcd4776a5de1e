"""The contract's section 6.2: each situation that a client can cause, with the error that it gets.
`SHOWN_BY` names the tests of errors that need a broken, a full or a busy service."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.acceptance.contract.rows import ABSENT
from tests.acceptance.service import MODEL
from tests.acceptance.small_model import CONTEXT

INVALID = "invalid_request_error"


@dataclass(frozen=True, slots=True)
class Error:
    """An error as the client gets it. A header of None must be present, one of "" absent."""

    status: int
    type: str
    code: str
    param: str | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Situation:
    """How a call differs from the usual one, and the error that it gets."""

    name: str
    error: Error
    key: str = "good"
    """The name of a key in `KEYS`, or text that is no key."""
    body: Mapping[str, Any] = field(default_factory=dict)
    content: bytes | None = None
    """Sent instead of a JSON body."""
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    suffix: str = ""
    """Appended to the route's path."""


KEYS: Mapping[str, tuple[str, ...]] = {
    "good": (),
    "revoked": (),
    "expired": ("--expires-in-days", "1"),
    "of another model": ("--models", MODEL),
    "without inference": ("--scopes", "usage:read"),
    "of another network": ("--networks", "192.0.2.0/24"),
    "one request a minute": ("--rpm", "1"),
    "ten tokens a minute": ("--tpm", "10"),
    "ten tokens a day": ("--daily-token-budget", "10"),
}
PROMPT = "prompt or messages"
"""The param is `prompt` or `messages`, whichever the route has."""
NEVER = {"x-should-retry": "false", "x-request-id": None}
PLAIN = {"x-request-id": None, "retry-after": ""}
BEARER = {"www-authenticate": "Bearer", "x-request-id": None}
JSON = {"Content-Type": "application/json"}


def _invalid(
    name: str, code: str, param: str | None = None, status: int = 400, **sent: Any
) -> Situation:
    return Situation(name, Error(status, INVALID, code, param, PLAIN), **sent)


def _key(name: str, code: str) -> Situation:
    return Situation(f"a key: {name}", Error(401, INVALID, code, None, BEARER), key=name)


def _denied(key: str, param: str | None) -> Situation:
    error = Error(403, "permission_error", "permission_denied", param, PLAIN)
    return Situation(f"a key {key}", error, key=key)


def _limited(key: str, type: str, code: str, headers: Mapping[str, str | None]) -> Situation:
    return Situation(key, Error(429, type, code, None, headers), key=key, body={"max_tokens": 99})


SITUATIONS = (
    Situation("no credentials", Error(401, INVALID, "missing_api_key", None, BEARER), key=""),
    _key("nobody's", "invalid_api_key"),
    _key("revoked", "api_key_revoked"),
    _key("expired", "api_key_expired"),
    _denied("of another model", "model"),
    _denied("without inference", None),
    _denied("of another network", None),
    _invalid("malformed JSON", "invalid_json", content=b'{"model": ', headers=JSON),
    _invalid("a name twice", "invalid_json", content=b'{"n": 1, "n": 1}', headers=JSON),
    _invalid("not a number", "invalid_json", content=b'{"n": NaN}', headers=JSON),
    _invalid("no object", "invalid_json", content=b"[1]", headers=JSON),
    _invalid("another type", "unsupported_media_type", status=415, content=b"{}",
             headers={"Content-Type": "text/plain"}),
    _invalid("an unknown field", "unknown_parameter", "max_tokns", body={"max_tokns": 1}),
    _invalid("a missing field", "missing_required_parameter", "model", body={"model": ABSENT}),
    _invalid("a bad type", "invalid_type", "max_tokens", body={"max_tokens": "1"}),
    _invalid("too small", "integer_below_min_value", "max_tokens", body={"max_tokens": -1}),
    _invalid("too large", "integer_above_max_value", "n", body={"n": 10**6}),
    _invalid("too small a number", "decimal_below_min_value", "top_p", body={"top_p": -0.5}),
    _invalid("too large a number", "decimal_above_max_value", "top_p", body={"top_p": 1.5}),
    _invalid("too many", "array_above_max_length", "stop", body={"stop": ["a"] * 100}),
    _invalid("a bad value", "invalid_value", "return_hidden_states",
             body={"return_hidden_states": "first"}),
    _invalid("an unknown model", "model_not_found", "model", 404, body={"model": "nobody"}),
    _invalid("too many tokens", "context_length_exceeded", PROMPT,
             body={"max_tokens": CONTEXT}),
    _invalid("a bad grammar", "invalid_grammar", "regex", body={"regex": "("}),
    _limited("ten tokens a minute", "tokens", "rate_limit_exceeded", {
        **NEVER, "retry-after": "", "x-ratelimit-limit-tokens": "10",
        "x-ratelimit-remaining-tokens": "10", "x-ratelimit-reset-tokens": None,
    }),
    _limited("ten tokens a day", "insufficient_quota", "insufficient_quota", {
        **NEVER, "retry-after": "",
    }),
    _invalid("a large body", "payload_too_large", None, 413, content=b" " * (9 << 20),
             headers=JSON),
    _invalid("no such method", "method_not_allowed", None, 405, method="PUT"),
    _invalid("no such path", "completion_not_found", "id", 404, method="GET", suffix="/nobody"),
    _invalid("nothing to cancel", "completion_not_found", "id", 404, suffix="/nobody/cancel"),
    _invalid("no path at all", "not_found", None, 404, suffix="/nobody/nothing"),
)  # fmt: skip
SHOWN_BY: Mapping[str, str] = {
    "grammar_timeout": "tests/acceptance/hostile/test_grammars.py",
    "queue_full": "tests/completions/endpoints/test_completions.py",
    "server_overloaded": "tests/faults/test_resources.py",
    "queue_timeout": "tests/completions/jobs/test_life_cycle.py",
    "generation_timeout": "tests/completions/jobs/test_worker_failures.py",
    "worker_error": "tests/faults/test_engine.py",
    "server_shutting_down": "tests/acceptance/kills/test_kills.py",
    "model_loading": "tests/completions/http/test_error_handlers.py",
    "rate_limit_exceeded": "tests/acceptance/test_life_cycle.py",
    "concurrency_limit_exceeded": "tests/acceptance/test_life_cycle.py",
    "file_in_use": "tests/completions/batches/test_files.py",
    "batch_limit_exceeded": "tests/completions/endpoints/test_batches.py",
}
"""By error code: the file with the tests that cause it."""
