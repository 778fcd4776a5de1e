"""A span per API request, a child of the client's span if it sends W3C trace headers."""

from collections.abc import MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from completions.contract import tracing
from completions.http import web_metrics
from completions.http.error_handlers import API_PATHS

_NOTHING = nullcontext()


def start_span(scope: MutableMapping[str, Any], request_id: str) -> AbstractContextManager[Any]:
    """Start the span of an API request; does nothing for other paths or without tracing."""
    if tracing.tracer is None or not scope["path"].startswith(API_PATHS):
        return _NOTHING
    from opentelemetry.trace import SpanKind

    method, route = scope["method"], web_metrics.find_route(scope["path"])
    carrier = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in (b"traceparent", b"tracestate")
    }
    return tracing.tracer.start_as_current_span(
        f"{method} {route}",
        context=tracing.extract_parent(carrier),
        kind=SpanKind.SERVER,
        attributes={
            "http.request.method": method,
            "http.route": route,
            "url.path": scope["path"],
            "quire.request_id": request_id,
        },
    )


def note_begin() -> None:
    """Record the start of the response."""
    if tracing.tracer is not None:
        from opentelemetry.trace import get_current_span

        get_current_span().add_event("response started")


def note_answer(status: int, facts: dict[str, Any]) -> None:
    """Add the facts of the access log to the span."""
    if tracing.tracer is None:
        return
    from opentelemetry.trace import StatusCode, get_current_span

    span = get_current_span()
    span.set_attribute("http.response.status_code", status)
    for attribute, fact in (
        ("error.type", "code"),
        ("gen_ai.request.model", "model"),
        ("quire.job_id", "job_id"),
        ("quire.api_key", "api_key"),
    ):
        if facts.get(fact):
            span.set_attribute(attribute, facts[fact])
    if status >= 500:
        span.set_status(StatusCode.ERROR, facts.get("code"))
