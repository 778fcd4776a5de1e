"""A span per attempt at a job, under the span of the HTTP request that made the job."""

from typing import TYPE_CHECKING, Self

import orjson

from completions.contract import tracing
from completions.jobs.execute import Claim

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


class AttemptSpan:
    """Attribute names are OpenTelemetry's for generative AI, or else vLLM's."""

    def __init__(self, span: "Span") -> None:
        self._span = span
        self._produced = False

    @classmethod
    def begin(cls, tracer: "Tracer", claim: Claim, model: str, worker: str) -> Self:
        """Start the span of a new attempt."""
        from opentelemetry.trace import SpanKind

        span = tracer.start_span(
            f"generate {model}",
            context=tracing.extract_parent(orjson.loads(claim.trace or "{}")),
            kind=SpanKind.CONSUMER,
            attributes={
                "gen_ai.request.model": model,
                "gen_ai.latency.time_in_queue": claim.age,
                "quire.request_id": claim.request_id,
                "quire.job_id": claim.job_id,
                "quire.worker": worker,
                "quire.attempt": claim.attempt,
            },
        )
        return cls(span)

    def record_output(self, seconds: float) -> None:
        """Note tokens that came `seconds` after the job was submitted."""
        if not self._produced:
            self._produced = True
            self._span.add_event("first token")
            self._span.set_attribute("gen_ai.latency.time_to_first_token", seconds)

    def record_end(self, outcome: str, failed: bool, prompt_tokens: int, generated: int) -> None:
        """Close the span of a job that has ended: completed, cancelled or an error's code."""
        self._span.set_attribute("gen_ai.usage.input_tokens", prompt_tokens)
        self._span.set_attribute("gen_ai.usage.output_tokens", generated)
        self._close(outcome, failed)

    def leave(self, outcome: str) -> None:
        """Close the span of a job that another attempt continues."""
        self._close(outcome, failed=False)

    def _close(self, outcome: str, failed: bool) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("quire.outcome", outcome)
        if failed:
            self._span.set_attribute("error.type", outcome)
            self._span.set_status(StatusCode.ERROR, outcome)
        self._span.end()
