"""Traces, where OpenTelemetry is installed and its own environment variables ask for them.

A span of the web tier covers an HTTP request and one of a worker each attempt at its job, whose
record carries the former's W3C headers. Off, nothing of this package costs more than a look at
`tracer`. That traces cannot be had is a line in the log, never a reason not to serve.
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
"""That a process which ends waits for a collector."""
LONGEST = 1024
"""Characters of the W3C headers that a job's record takes."""

tracer: "Tracer | None" = None
"""Makes spans; None while nobody asked for any."""
_provider: "TracerProvider | None" = None


def wanted(environment: Mapping[str, str]) -> bool:
    """OpenTelemetry's own rules, except that without an address nothing is sent anywhere."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter == "none":
        return False
    return exporter == "otlp" or any(environment.get(name) for name in ENDPOINTS)


def start(service: str) -> None:
    """Trace this process, named `service` unless OTEL_SERVICE_NAME names it, if that is wanted."""
    if not wanted(os.environ):
        return
    protocol = next((os.environ[name] for name in PROTOCOLS if os.environ.get(name)), PROTOCOL)
    if protocol != PROTOCOL:
        logger.error("no traces: OTLP by %s is asked for, only %s is spoken", protocol, PROTOCOL)
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        logger.error("no traces: %s; pip install -r requirements-otel.txt", error)
        return
    named = "OTEL_SERVICE_NAME" in os.environ
    provider = TracerProvider(resource=Resource.create({} if named else {SERVICE_NAME: service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    use(provider)


def use(provider: "TracerProvider") -> None:
    """Make spans with it."""
    global tracer, _provider
    tracer, _provider = provider.get_tracer("quire"), provider


def stop() -> None:
    """Make no more spans and send those that there are, as far as the collector takes them soon."""
    global tracer, _provider
    if _provider is not None:
        sending = threading.Thread(target=_provider.shutdown, name="last spans", daemon=True)
        sending.start()
        sending.join(LAST_SECONDS)
    tracer = _provider = None


def headers() -> str:
    """The W3C headers of the span at hand as JSON, for a job's record; empty if there is none."""
    if tracer is None:
        return ""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    if sum(map(len, carrier.values())) > LONGEST:
        carrier.pop("tracestate")  # what other systems noted; no trace breaks without it
    return orjson.dumps(carrier).decode() if carrier else ""


def parent(carrier: Mapping[str, str]) -> "Context":
    """The span that W3C headers name, as the parent of one to be begun. Without a valid one it is
    the root of a trace."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(carrier, Context())
