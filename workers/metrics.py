"""Metrics of an engine worker: a Prometheus page, kept in Redis beside the heartbeat.

So no worker opens a port, and one scrape of the web tier covers all workers. Names follow vLLM's
for metrics that it has too. The engine's own counters come from `Engine.stats` (`EngineStats`).
"""

import time
from collections.abc import Callable, Iterable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from completions.jobs.execute import Claim
from workers.engine.stats import EngineStats

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_SECONDS = (
    0.002,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    5.0,
)
_TOKENS = tuple(float(4**power) for power in range(9))
"""1 to 65,536."""


class WorkerMetrics:
    """The relay's thread updates it; any thread may write the page."""

    def __init__(
        self, stats: Callable[[], EngineStats], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._registry = registry = CollectorRegistry()
        registry.register(_EngineCollector(stats, clock))
        ProcessCollector(namespace="quire_worker", registry=registry)

        def histogram(name: str, text: str, buckets: Iterable[float] = _SECONDS) -> Histogram:
            return Histogram(f"quire_{name}", text, buckets=tuple(buckets), registry=registry)

        self.queue_time = histogram(
            "request_queue_time_seconds", "From submission to the first claim by a worker."
        )
        self.first_token = histogram(
            "time_to_first_token_seconds", "From submission to the first token."
        )
        self.inter_token = histogram(
            "inter_token_latency_seconds",
            "Between two outputs of a request, divided by the tokens of the later one.",
            _TOKEN_SECONDS,
        )
        self.latency = histogram("e2e_request_latency_seconds", "From submission to the end.")
        self.prompt_tokens = histogram(
            "request_prompt_tokens", "Prompt tokens of an ended request.", _TOKENS
        )
        self.generation_tokens = histogram(
            "request_generation_tokens",
            "Generated tokens of an ended request, over all choices.",
            _TOKENS,
        )
        self.ended = Counter(
            "quire_requests",
            "Ended requests by outcome: completed, cancelled, or the error's code.",
            ["outcome"],
            registry=registry,
        )

    def begin(self, claim: Claim, resumed: bool) -> "RequestTimes":
        """Return the times of a claimed job. It is `resumed` if an earlier attempt published
        tokens."""
        if claim.attempt == 1:
            self.queue_time.observe(claim.age)
        return RequestTimes(self, self._clock() - claim.age, resumed)

    def page(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return prometheus_client.generate_latest(self._registry)


class RequestTimes:
    """Times of one request's outputs."""

    __slots__ = ("_last_at", "_metrics", "_resumed", "submitted_at")

    def __init__(self, metrics: WorkerMetrics, submitted_at: float, resumed: bool) -> None:
        self._metrics = metrics
        self._resumed = resumed
        self._last_at: float | None = None
        self.submitted_at = submitted_at

    def record_output(self, now: float, tokens: int) -> None:
        """Note an output of `tokens` tokens."""
        if not tokens:
            return
        if self._last_at is not None:
            self._metrics.inter_token.observe((now - self._last_at) / tokens)
        elif not self._resumed:
            self._metrics.first_token.observe(now - self.submitted_at)
        self._last_at = now

    def record_end(self, now: float, outcome: str, prompt_tokens: int, generated: int) -> None:
        metrics = self._metrics
        metrics.ended.labels(outcome).inc()
        metrics.latency.observe(now - self.submitted_at)
        metrics.prompt_tokens.observe(prompt_tokens)
        metrics.generation_tokens.observe(generated)


_COUNTERS = {
    "num_preemptions": ("preemptions", "Sequences that lost their blocks to others."),
    "prefix_cache_queries": ("prefix_cache_queries", "Tokens of sequences that began to run."),
    "prefix_cache_hits": ("prefix_cache_hits", "Tokens among them that the prefix cache had."),
    "generation_tokens": ("generated_tokens", "Generated tokens."),
    "forced_tokens": ("forced_tokens", "Generated tokens that a grammar left no choice about."),
    "drafted_tokens": ("drafted_tokens", "Tokens that were computed before they were known."),
    "accepted_tokens": ("accepted_tokens", "Drafted tokens that sampling confirmed."),
    "engine_steps": ("steps", "Steps of the engine."),
}
"""The field of EngineStats and the help text of each counter."""


class _EngineCollector(Collector):
    """The engine's own counters, read when the page is written."""

    def __init__(self, stats: Callable[[], EngineStats], clock: Callable[[], float]) -> None:
        self._stats = stats
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        used = stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
        idle = self._clock() - stats.last_step_at if stats.running else 0.0
        for name, text, value in (
            ("num_requests_running", "Sequences that run.", stats.running),
            ("num_requests_waiting", "Sequences that wait for a slot.", stats.waiting),
            ("loaded_adapters", "Adapters loaded since the start.", stats.loaded_adapters),
            (
                "kv_cache_usage_perc",
                "Share of the KV cache's blocks that running sequences hold, from 0 to 1.",
                used,
            ),
            (
                "engine_step_age_seconds",
                "Seconds since the last step began or ended, while sequences run.",
                idle,
            ),
        ):
            yield GaugeMetricFamily(f"quire_{name}", text, value=value)
        for name, (field, text) in _COUNTERS.items():
            yield CounterMetricFamily(f"quire_{name}", text, value=getattr(stats, field))
        split = CounterMetricFamily(
            "quire_engine_step_seconds", "Seconds spent in steps, by phase.", labels=["phase"]
        )
        for phase, seconds in stats.step_seconds.items():
            split.add_metric([phase], seconds)
        yield split
