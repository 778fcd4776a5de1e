"""The span of an attempt, and that a relay ends each one that it began."""

import threading
import time

import orjson
import pytest

from completions.contract import tracing
from completions.contract.job_request import JobRequest
from completions.contract.sampling import SamplingParams
from completions.contract.usage import Usage
from completions.jobs.connection import connect, connect_async
from completions.jobs.execute import Claim, Execution
from completions.jobs.new_job import NewJob
from completions.jobs.store import JobStore
from completions.jobs.submit import Submission
from tests.workers.engine.stats_making import engine_stats
from workers.attempt_spans import AttemptSpan
from workers.engine.core.output import ChoiceDelta, RequestOutput
from workers.engine.exceptions import InvalidRequest
from workers.engine.text.finish import FinishReason
from workers.relay import Relay

pytest.importorskip("opentelemetry.sdk", reason="requirements-otel.txt is not installed")
from opentelemetry.trace import SpanKind, StatusCode

PREFIX = "t:"
TRACE, CALLER = "a" * 32, "b" * 16
HEADERS = orjson.dumps({"traceparent": f"00-{TRACE}-{CALLER}-01"}).decode()


def claim(trace=HEADERS):
    return Claim("job", 2, b"{}", 60.0, 1, age=0.5, request_id="trace-1", trace=trace)


def test_a_span_describes_an_attempt(spans):
    span = AttemptSpan.begin(tracing.tracer, claim(), "tiny", "worker-1")
    span.record_output(0.75)
    span.record_output(0.9)
    span.record_end("completed", False, 3, 7)
    (span,) = spans()
    assert (span.name, span.kind) == ("generate tiny", SpanKind.CONSUMER)
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == CALLER
    assert [event.name for event in span.events] == ["first token"]
    assert dict(span.attributes) == {
        "gen_ai.request.model": "tiny",
        "gen_ai.latency.time_in_queue": 0.5,
        "gen_ai.latency.time_to_first_token": 0.75,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 7,
        "quire.request_id": "trace-1",
        "quire.job_id": "job",
        "quire.worker": "worker-1",
        "quire.attempt": 2,
        "quire.outcome": "completed",
    }


def test_a_job_that_no_traced_request_made_begins_a_trace(spans):
    AttemptSpan.begin(tracing.tracer, claim(trace=""), "tiny", "worker-1").leave("given back")
    (span,) = spans()
    assert span.parent is None
    assert span.attributes["quire.outcome"] == "given back"
    assert span.status.status_code is StatusCode.UNSET


class Engine:
    """Holds what it is given; exports it when the test asks."""

    def __init__(self):
        self.taken = threading.Semaphore(0)

    def start(self, on_outputs, on_fatal):
        self.on_outputs = on_outputs

    def submit(self, request):
        self.taken.release()

    def abort(self, request_id):
        pass

    def stop(self):
        pass

    def stats(self):
        return engine_stats(last_step_at=time.monotonic())


@pytest.mark.integration
async def test_a_relay_ends_the_span_of_every_attempt(spans, valkey, redis_client):
    """One job completes, one fails, one goes back when the worker stops."""
    client, engine = connect_async(valkey.url), Engine()
    execution = Execution(JobStore(connect(valkey.url), PREFIX), "worker-1")
    relay = Relay(engine, execution, "tiny", on_broken=lambda error: None)
    relay.start()
    submission = Submission(JobStore(client, PREFIX), "web-1")
    request = JobRequest(((1, 2),), SamplingParams(max_tokens=4, seed=3))
    for name in ("completes", "fails", "stays"):
        job = NewJob(
            name, "background", "tiny", 1, 1,
            request, b"", 60, 60, request_id=name, trace=HEADERS,
        )  # fmt: skip
        await submission.submit(job)
        relay.submit(name, lambda: None)
        assert engine.taken.acquire(timeout=60)
    delta = ChoiceDelta(0, [5], "5", FinishReason.STOP)
    engine.on_outputs([RequestOutput("completes", [delta], True, None, Usage(2, 1))])
    engine.on_outputs([RequestOutput("fails", [], True, InvalidRequest("no"))])
    relay.stop(60)
    await client.aclose()
    ended = {span.attributes["quire.request_id"]: span for span in spans()}
    assert {name: span.attributes["quire.outcome"] for name, span in ended.items()} == {
        "completes": "completed",
        "fails": InvalidRequest.code,
        "stays": "given back",
    }
    assert ended["fails"].status.status_code is StatusCode.ERROR
    assert {f"{span.context.trace_id:032x}" for span in ended.values()} == {TRACE}
