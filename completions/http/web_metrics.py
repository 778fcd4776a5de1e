"""The metrics of one web process."""

from functools import lru_cache

import prometheus_client
from django.urls import Resolver404, resolve
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

registry = CollectorRegistry()
ProcessCollector(namespace="quire_web", registry=registry)

_MAX_PATH_LENGTH = 500
"""Characters of a path that are kept; anyone may send paths of 64 KiB."""
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
