"""A request's span: its parent, its attributes, and the trace headers of the job."""

from types import SimpleNamespace

import orjson
import pytest

from completions.accounts.keys import Principal
from completions.contract.job_request import JobRequest
from completions.delivery import enqueueing
from completions.http import access_log
from project.server.gateway import Gateway

pytest.importorskip("opentelemetry.sdk", reason="requirements-otel.txt is not installed")
from opentelemetry.trace import SpanKind, StatusCode

TRACE, CALLER = "a" * 32, "b" * 16


async def call(path="/v1/completions", headers=(), status=200, meanwhile=lambda: None):
    async def application(scope, receive, send):
        meanwhile()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def nothing(message=None):
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers)}
    await Gateway(application, 10)(scope, nothing, nothing)


async def test_a_span_says_what_the_access_log_says(spans):
    def meanwhile():
        access_log.note(model="tiny", job_id="cmpl-1", code="server_overloaded")

    await call(headers=[(b"x-request-id", b"trace-1")], status=503, meanwhile=meanwhile)
    (span,) = spans()
    assert (span.name, span.kind, span.parent) == (
        "POST /v1/completions",
        SpanKind.SERVER,
        None,
    )
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["response started"]
    assert dict(span.attributes) == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "url.path": "/v1/completions",
        "quire.request_id": "trace-1",
        "http.response.status_code": 503,
        "error.type": "server_overloaded",
        "gen_ai.request.model": "tiny",
        "quire.job_id": "cmpl-1",
    }


async def test_it_is_a_child_of_the_clients_span_and_the_job_carries_it(spans, served):
    made = []

    def meanwhile():
        prepared = SimpleNamespace(
            context=SimpleNamespace(id="cmpl-1", served_model="tiny", rids=(), to_json=bytes),
            job_request=JobRequest(),
            request=SimpleNamespace(
                model=SimpleNamespace(entry=SimpleNamespace(token_prices=())),
                response=None,
                deadline=None,
            ),
            session_turn=None,
        )
        made.append(enqueueing.new_job(prepared, "sync", Principal(1, 2, "abc", (), None)))

    sent = [(b"traceparent", f"00-{TRACE}-{CALLER}-01".encode()), (b"tracestate", b"vendor=1")]
    await call(headers=sent, meanwhile=meanwhile)
    (span,) = spans()
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == CALLER
    assert span.status.status_code is StatusCode.UNSET
    (job,) = made
    assert orjson.loads(job.trace) == {
        "traceparent": f"00-{TRACE}-{span.context.span_id:016x}-01",
        "tracestate": "vendor=1",
    }


async def test_an_invalid_traceparent_starts_a_new_trace(spans):
    await call(headers=[(b"traceparent", b"\xff-no"), (b"tracestate", b"=,=")])
    (span,) = spans()
    assert span.parent is None


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/admin/login/"])
async def test_probes_and_the_admin_make_no_spans(spans, path):
    await call(path)
    assert spans() == ()
