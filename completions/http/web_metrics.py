"""What one web process counts about the requests that it answered: its metrics, and who was refused
what."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import prometheus_client
from django.urls import Resolver404, resolve
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from completions.http import access_log
from completions.http.process import WebProcess
from completions.usage.refusals import RefusalCounter

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

registry = CollectorRegistry()
ProcessCollector(namespace="quire_web", registry=registry)

_MAX_PATH_LENGTH = 500
"""Characters of a path that are kept; anyone may send paths of 64 KiB."""
_HIDDEN = "{}: the answer may quote the request, and its organization does not store prompts."
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

requests = Counter(
    "quire_http_requests",
    "HTTP requests; status 499: the client hung up before the response began.",
    ["method", "route", "status"],
    registry=registry,
)
until_answer = Histogram(
    "quire_http_response_start_seconds",
    "From a request to the first byte of its response.",
    ["route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
    registry=registry,
)
refusals = Counter(
    "quire_refusals",
    "Requests answered with an error, by status and code.",
    ["status", "code"],
    registry=registry,
)
open_requests = Gauge(
    "quire_http_open_requests",
    "Requests and streams that have not ended.",
    registry=registry,
)


def find_route(path: str) -> str:
    """Return the URL pattern of a path, so that ids and unknown paths add no time series. Only the
    beginning of a long path counts."""
    return _find_route(path[:_MAX_PATH_LENGTH])


@lru_cache(maxsize=1024)
def _find_route(path: str) -> str:
    try:
        return f"/{resolve(path).route}"
    except Resolver404:
        return "none"


def count(method: str, path: str, status: int, seconds: float | None, code: str | None) -> None:
    """Count a request that ended. `seconds` passed until the response began, or None if none did;
    `code` is its error's."""
    route = find_route(path)
    requests.labels(method if method in _METHODS else "other", route, str(status)).inc()
    if seconds is not None:
        until_answer.labels(route).observe(seconds)
    if code is not None:
        refusals.labels(str(status), code).inc()


def count_refusal(scope: Mapping[str, Any], status: int, facts: dict[str, Any]) -> None:
    """Count an answered request if it was refused, for its key or, without a valid one, for its
    address. Takes the facts out that no log line has."""
    error = facts.pop(access_log.ERROR, None)
    stores_prompts = facts.pop(access_log.STORES_PROMPTS, False)
    if error is None or error.ends_job or status < 400:
        return
    if "api_key" in facts:
        owner = (facts["organization"], facts["api_key"])
        # What names a parameter may quote its value.
        may_store = stores_prompts or error.param is None
        message = error.message if may_store else _HIDDEN.format(facts.get("param", "a parameter"))
        _find(scope).count(*owner, error.code, message, facts["request_id"])
    elif "wrong_key" in facts:
        address, _port = scope.get("client") or ("", 0)
        _find(scope).count_wrong_key(facts["wrong_key"], address, error.code)


def _find(scope: Mapping[str, Any]) -> RefusalCounter:
    process: WebProcess = scope["state"]["process"]
    return process.refusals
