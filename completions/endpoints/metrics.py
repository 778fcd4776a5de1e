"""GET /metrics: Prometheus metrics of the web process, the queue and the workers."""

import asyncio
import hmac
from collections.abc import Iterable, Sequence

import prometheus_client
from django.conf import settings
from django.http import HttpResponse
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from completions.catalog import model_files
from completions.exceptions import APIError, invalid_parameter
from completions.http import web_metrics
from completions.http.authentication import parse_bearer
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.process import WebProcess
from completions.jobs.operate import Backlog
from completions.jobs.workers import MetricsPage

PARTS = ("web", "service")
PATIENCE = 5.0
"""Seconds to wait for Redis."""


class MetricsView(AsyncAPIView):
    """Metrics for Prometheus. `?part=web` returns the metrics of this web process, `?part=service`
    the metrics of the workers and the queue, which are the same from every web process."""

    authenticated = False

    async def get(self, request: APIRequest) -> HttpResponse:
        _require_token(request.META.get("HTTP_AUTHORIZATION", ""))
        part = request.query_params.get("part")
        if part not in (None, *PARTS):
            raise invalid_parameter("part", part, f"one of: {', '.join(PARTS)}")
        text = b""
        if part != "service":
            text += prometheus_client.generate_latest(web_metrics.registry)
        if part != "web":
            text += await _measure_service(request.process)
        return HttpResponse(text, content_type=prometheus_client.CONTENT_TYPE_LATEST)


def _require_token(header: str) -> None:
    """Raise APIError without the token: the load and the names of models are not public."""
    token = settings.METRICS_TOKEN
    if not token:
        message = "Metrics are off. Set QUIRE_METRICS_TOKEN and send it as a bearer token."
        raise APIError("permission_denied", message)
    if not hmac.compare_digest(parse_bearer(header).encode(), token.encode()):
        raise APIError("invalid_metrics_token")


async def _measure_service(process: WebProcess) -> bytes:
    models = [entry.id for entry in model_files.load_catalog()]
    try:
        async with asyncio.timeout(PATIENCE):
            backlog = await process.measure_backlog(models)
            pages = await process.read_metrics_pages()
    except (RedisError, OSError):
        return prometheus_client.generate_latest(Families([_make_up(0)]))
    families = [_make_up(1), *_iter_backlog(backlog), _make_workers(models, pages)]
    return await asyncio.to_thread(
        lambda: prometheus_client.generate_latest(Families([*families, *merge(pages)]))
    )


def _make_up(value: int) -> Metric:
    return GaugeMetricFamily("quire_redis_up", "1 while Redis answers.", value=value)


def _iter_backlog(backlog: Backlog) -> Iterable[Metric]:
    for name, text, value in (
        ("jobs_open", "Jobs that have not ended.", backlog.open_jobs),
        ("jobs_unsettled", "Ended jobs that SQL does not have yet.", backlog.unsettled),
        ("jobs_unsettled_age_seconds", "Age of the oldest of them.", backlog.unsettled_age),
        ("reconciler_lag_seconds", "Delay of the reconciler's checks.", backlog.reconciler_lag),
        ("redis_memory_bytes", "Memory that Redis uses.", backlog.memory_used),
        ("redis_memory_limit_bytes", "maxmemory; 0 for no limit.", backlog.memory_limit),
    ):
        yield GaugeMetricFamily(f"quire_{name}", text, value=value)
    waiting = GaugeMetricFamily(
        "quire_queue_messages", "Jobs that no worker has taken yet.", labels=["model_name"]
    )
    for model, count in backlog.messages.items():
        waiting.add_metric([model], count)
    yield waiting


def _make_workers(models: Sequence[str], pages: Sequence[MetricsPage]) -> Metric:
    live = GaugeMetricFamily("quire_workers", "Live engine workers.", labels=["model_name"])
    for model in models:
        live.add_metric([model], sum(page.model == model for page in pages))
    return live


def merge(pages: Iterable[MetricsPage]) -> list[Metric]:
    """Return the metric families of all workers; each sample has the labels `model_name` and
    `worker`."""
    families: dict[str, Metric] = {}
    for page in pages:
        labels = {"model_name": page.model, "worker": page.id}
        for family in text_string_to_metric_families(page.text):
            whole = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            whole.samples += [s._replace(labels={**s.labels, **labels}) for s in family.samples]
    return list(families.values())


class Families(Collector):
    """Metric families for `generate_latest`."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
