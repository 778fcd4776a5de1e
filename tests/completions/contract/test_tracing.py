"""When traces are made, and that nothing is loaded or lost where they are not."""

import gzip
import logging
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from completions.contract import tracing
from tests.running import PATIENCE

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("environment", "traced"),
    [
        ({}, False),
        (COLLECTOR, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**COLLECTOR, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**COLLECTOR, "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_SERVICE_NAME": "quire"}, False),
    ],
)
def test_the_environment_decides(environment, traced):
    assert tracing.is_enabled(environment) is traced


def test_off_nothing_is_loaded_and_nothing_travels():
    """In a process of its own: this one may have loaded the exporter for another test."""
    script = (
        "import sys; from completions.contract import tracing; tracing.start('web');"
        "assert tracing.tracer is None;"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    environment = {"PATH": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


@pytest.fixture
def wanted(monkeypatch):
    for name, value in COLLECTOR.items():
        monkeypatch.setenv(name, value)
    yield
    tracing.stop()


def test_without_the_packages_the_service_runs_and_says_so(wanted, monkeypatch, caplog):
    for name in [*sys.modules]:
        if name.startswith("opentelemetry"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    tracing.start("web")
    assert tracing.tracer is None
    assert "pip install -r requirements-otel.txt" in caplog.text


def test_a_protocol_that_is_not_supported_is_named(wanted, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    tracing.start("web")
    assert tracing.tracer is None
    assert "OTLP over grpc is not supported" in caplog.text


def test_a_collector_that_is_away_holds_nothing_up(wanted, caplog, monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(tracing, "LAST_SECONDS", 0.01)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    others = set(threading.enumerate())
    tracing.start("web")
    assert tracing.tracer is not None
    with tracing.tracer.start_as_current_span("request"):
        assert tracing.make_headers()
    tracing.stop()
    assert tracing.tracer is None
    # Its attempts draw random numbers: Hypothesis would blame a property that is tested meanwhile.
    for thread in set(threading.enumerate()) - others:
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Collector(BaseHTTPRequestHandler):
    """Takes OTLP as a collector does, into `taken`."""

    taken: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.taken.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not into the test's output."""


def test_a_collector_is_sent_what_a_process_has_when_it_ends(wanted, monkeypatch):
    proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    Collector.taken.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        tracing.start("quire-web")
        assert tracing.tracer is not None
        with tracing.tracer.start_as_current_span("request"):
            pass
        tracing.stop()
        server.shutdown()
    ((path, body),) = Collector.taken
    assert path == "/v1/traces"
    (resource,) = proto.ExportTraceServiceRequest.FromString(body).resource_spans
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "quire-web"
    assert [span.name for span in resource.scope_spans[0].spans] == ["request"]


@pytest.mark.parametrize("noted", ["vendor=1", "vendor=" + "x" * 5000])
def test_what_travels_is_short(noted):
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    tracing.use(sdk.TracerProvider())
    try:
        given = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": noted}
        assert tracing.tracer is not None
        with tracing.tracer.start_as_current_span("request", context=tracing.extract_parent(given)):
            travels = tracing.make_headers()
        assert f"00-{'a' * 32}-" in travels
        assert len(travels) < 2 * tracing.LONGEST
    finally:
        tracing.stop()
