"""`GET /metrics`: the service as Prometheus sees it, workers included."""

import asyncio
import hmac
from collections.abc import Iterable, Sequence

import prometheus_client
from django.conf import settings
from django.http import HttpResponse
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from completions.catalog import model_files
from completions.errors import APIError
from completions.http import runtime, web_metrics
from completions.http.authentication import bearer
from completions.http.base import APIRequest, AsyncAPIView
from completions.jobs.operate import Backlog, read_backlog
from completions.jobs.workers import WorkerPage, worker_pages

PARTS = ("web", "service")
PATIENCE = 5.0
"""Seconds to wait for Redis."""


class MetricsView(AsyncAPIView):
    """Text for Prometheus: `?part=web` has this web process alone, `?part=service` the workers and
    the queue, which every web process tells alike; both without."""

    authenticated = False
    schema = None  # no part of the OpenAPI document: it is not JSON

    async def get(self, request: APIRequest) -> HttpResponse:
        _require_token(request.META.get("HTTP_AUTHORIZATION", ""))
        part = request.query_params.get("part")
        if part not in (None, *PARTS):
            raise APIError("invalid_value", f"part is one of {', '.join(PARTS)}", "part")
        text = b""
        if part != "service":
            text += prometheus_client.generate_latest(web_metrics.registry)
        if part != "web":
            text += await _service()
        return HttpResponse(text, content_type=prometheus_client.CONTENT_TYPE_LATEST)


def _require_token(header: str) -> None:
    """Raises APIError. Names of models and the load are nobody else's business."""
    wanted = settings.METRICS_TOKEN
    if not wanted:
        message = "Metrics are off. Set QUIRE_METRICS_TOKEN and send it as a bearer token."
        raise APIError("permission_denied", message)
    if not hmac.compare_digest(bearer(header).encode(), wanted.encode()):
        raise APIError("invalid_metrics_token")


async def _service() -> bytes:
    here = await runtime.current()
    models = [entry.id for entry in model_files.served_models()]
    try:
        async with asyncio.timeout(PATIENCE):
            backlog = await read_backlog(here.redis, settings.REDIS_PREFIX, models)
            pages = await worker_pages(here.redis, settings.REDIS_PREFIX)
    except (RedisError, OSError):
        return await asyncio.to_thread(_written, [_up(0)])
    families = [_up(1), *_of_backlog(backlog), *_of_workers(models, pages)]
    return await asyncio.to_thread(lambda: _written([*families, *merged(pages)]))


def _up(value: int) -> Metric:
    return GaugeMetricFamily("quire_redis_up", "1 while Redis answers.", value=value)


def _of_backlog(backlog: Backlog) -> Iterable[Metric]:
    for name, text, value in (
        ("jobs_open", "Jobs that have not ended.", backlog.open_jobs),
        ("jobs_unsettled", "Ended jobs that SQL does not have yet.", backlog.unsettled),
        ("jobs_unsettled_age_seconds", "Of the oldest of them.", backlog.unsettled_age),
        (
            "reconciler_lag_seconds",
            "How late the CPU worker is to look after open jobs.",
            backlog.reconciler_lag,
        ),
        ("redis_memory_bytes", "Memory that Redis uses.", backlog.memory_used),
        ("redis_memory_limit_bytes", "maxmemory; 0 is none.", backlog.memory_limit),
    ):
        yield GaugeMetricFamily(f"quire_{name}", text, value=value)
    waiting = GaugeMetricFamily(
        "quire_queue_messages", "Jobs that no worker has taken yet.", labels=["model_name"]
    )
    for model, count in backlog.messages.items():
        waiting.add_metric([model], count)
    yield waiting


def _of_workers(models: Sequence[str], pages: Sequence[WorkerPage]) -> Iterable[Metric]:
    live = GaugeMetricFamily("quire_workers", "Live engine workers.", labels=["model_name"])
    for model in models:
        live.add_metric([model], sum(page.model == model for page in pages))
    yield live


def merged(pages: Iterable[WorkerPage]) -> list[Metric]:
    """All workers' families, each sample with its worker's and model's names."""
    families: dict[str, Metric] = {}
    for page in pages:
        labels = {"model_name": page.model, "worker": page.id}
        for family in text_string_to_metric_families(page.text):
            whole = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            whole.samples += [s._replace(labels={**s.labels, **labels}) for s in family.samples]
    return list(families.values())


class _Written(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _written(families: Sequence[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Written(families))
    return prometheus_client.generate_latest(registry)
