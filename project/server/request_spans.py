"""A span per API request, a child of the client's span if it sends W3C trace headers."""

from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from completions.contract import tracing
from completions.http import web_metrics

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


def start_span(
    tracer: "Tracer", scope: MutableMapping[str, Any], request_id: str
) -> AbstractContextManager["Span"]:
    """Start the span of a request."""
    from opentelemetry.trace import SpanKind

    method, route = scope["method"], web_metrics.find_route(scope["path"])
    carrier = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in (b"traceparent", b"tracestate")
    }
    return tracer.start_as_current_span(
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


def note_answer(span: "Span", status: int, facts: dict[str, Any]) -> None:
    """Add the facts of the access log to the span."""
    from opentelemetry.trace import StatusCode

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
