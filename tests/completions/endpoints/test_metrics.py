"""GET /metrics: its token, and the merged pages of workers."""

import tracemalloc

import pytest
from django.test import Client
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pytest_django.fixtures import Settings

from completions.endpoints import metrics
from completions.http import web_metrics
from completions.jobs.workers import MetricsPage

TOKEN = "scrape-me"


def test_metrics_are_off_until_a_token_is_set(client: Client, fake_process: object) -> None:
    refused = client.get("/metrics", headers={"Authorization": "Bearer "})
    assert refused.status_code == 403
    assert "QUIRE_METRICS_TOKEN" in refused.json()["error"]["message"]


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", "Bearer \xe9"])
def test_metrics_need_the_token(
    client: Client, fake_process: object, settings: Settings, header: str
) -> None:
    settings.METRICS_TOKEN = TOKEN
    refused = client.get("/metrics", headers={"Authorization": header})
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_metrics_token"


def test_the_part_of_a_web_process(
    client: Client, fake_process: object, settings: Settings
) -> None:
    settings.METRICS_TOKEN = TOKEN
    web_metrics.count("POST", "/v1/completions/cmpl-1/cancel", 404, 0.5, "not_found")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    page = client.get("/metrics?part=web", headers=headers)
    assert page.headers["Content-Type"].startswith("text/plain")
    text = page.content.decode()
    assert (
        'quire_http_requests_total{method="POST",route="/v1/completions/<str:job_id>/cancel",'
        'status="404"}'
    ) in text
    assert 'quire_refusals_total{code="not_found",status="404"}' in text
    assert "quire_jobs_open" not in text
    assert client.get("/metrics?part=all", headers=headers).status_code == 400


def test_unknown_paths_and_methods_add_no_time_series() -> None:
    assert web_metrics.find_route("/v1/completions/cmpl-1") == "/v1/completions/<str:job_id>"
    assert web_metrics.find_route("/wp-admin/x.php") == "none"
    web_metrics.count("BREW", "/coffee", 404, None, None)
    labels = [
        sample.labels for family in web_metrics.requests.collect() for sample in family.samples
    ]
    assert {"method": "other", "route": "none", "status": "404"} in labels


def test_long_paths_are_not_kept() -> None:
    """A stranger can send many, of 64 KiB each."""
    tracemalloc.start()
    try:
        for number in range(100):
            web_metrics.find_route(f"/v1/models/{number}{'x' * 60_000}")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000
    assert web_metrics.find_route(f"/v1/models/{'x' * 60_000}") == "/v1/models/<path:model_id>"


def test_the_pages_of_workers_are_merged() -> None:
    page = (
        "# HELP quire_steps_total Steps.\n# TYPE quire_steps_total counter\nquire_steps_total 3\n"
    )
    families = metrics.merge([MetricsPage("a", "m", page), MetricsPage("b", "m", page)])
    text = generate_latest(metrics.Families(families)).decode()
    assert text.count("# TYPE") == 1
    samples = [s for f in text_string_to_metric_families(text) for s in f.samples]
    assert [(s.name, s.labels["worker"], s.labels["model_name"], s.value) for s in samples] == [
        ("quire_steps_total", "a", "m", 3),
        ("quire_steps_total", "b", "m", 3),
    ]
