"""Traces, if OpenTelemetry is installed and its environment variables enable them.

A span of the web tier covers an HTTP request; a span of a worker covers each attempt at its job,
whose record carries the W3C headers of the request's span. Without traces there is no
`tracer`, and callers make no span. If traces cannot be sent, the service
logs the reason and runs without them.
"""

import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
LAST_SECONDS = 3.0
"""The most seconds that a process waits for the collector before it exits."""
LONGEST = 1024
"""The most characters of W3C headers that a job's record keeps."""

tracer: "Tracer | None" = None
"""Creates spans; None if tracing is off."""
_provider: "TracerProvider | None" = None


def is_enabled(environment: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's variables enable traces. Unlike in its SDK, an exporter or an
    address must be set."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter == "none":
        return False
    return exporter == "otlp" or any(environment.get(name) for name in ENDPOINTS)


def start(service: str) -> None:
    """Start tracing this process, if wanted, under OTEL_SERVICE_NAME or else `service`."""
    if not is_enabled(os.environ):
        return
    protocol = next((os.environ[name] for name in PROTOCOLS if os.environ.get(name)), PROTOCOL)
    if protocol != PROTOCOL:
        logger.error("no traces: OTLP over %s is not supported, use %s", protocol, PROTOCOL)
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        logger.error("no traces: %s; pip install -r requirements-otel.txt", error)
        return
    has_name = "OTEL_SERVICE_NAME" in os.environ
    provider = TracerProvider(resource=Resource.create({} if has_name else {SERVICE_NAME: service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    use(provider)


def use(provider: "TracerProvider") -> None:
    """Create spans with this provider."""
    global tracer, _provider
    tracer, _provider = provider.get_tracer("quire"), provider


def stop() -> None:
    """Stop creating spans, and send the remaining ones, waiting at most LAST_SECONDS."""
    global tracer, _provider
    if _provider is not None:
        sending = threading.Thread(target=_provider.shutdown, name="last spans", daemon=True)
        sending.start()
        sending.join(LAST_SECONDS)
    tracer = _provider = None


def make_headers() -> str:
    """Return the W3C headers of the current span as JSON, for a job's record; empty without a
    span."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    if sum(map(len, carrier.values())) > LONGEST:
        carrier.pop("tracestate")  # data of other systems; the trace is complete without it
    return orjson.dumps(carrier).decode() if carrier else ""


def extract_parent(carrier: Mapping[str, str]) -> "Context":
    """Return the parent context for a new span, from W3C headers. Without headers, the span starts
    a new trace."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(carrier, Context())
