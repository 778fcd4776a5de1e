"""What an operator sees: a request id through all logs, a page of metrics, a reason to wait."""

import json
import re
import time

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.conftest import METRICS_TOKEN
from tests.acceptance.service import MODEL, ROOT

pytestmark = pytest.mark.acceptance


def lines_about(service, log, request_id):
    """The JSON lines of a process's log that bear a request id."""
    text = (service.home / "log" / f"{log}.log").read_text()
    return [json.loads(line) for line in text.splitlines() if request_id in line]


def until(condition, timeout=60.0):
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
    return found


def test_a_request_id_leads_through_web_and_worker(service, http, tokenize):
    call = {"model": MODEL, "prompt": tokenize("Trace me"), "max_tokens": 3, "ignore_eos": True}
    prompt = "a very secret prompt"
    http.post("/v1/tokenize", json={"model": MODEL, "prompt": prompt})
    answer = http.post("/v1/completions", json=call, headers={"X-Request-Id": "trace-4711"})
    job_id = answer.json()["id"]
    begun, ended = until(
        lambda: (w := lines_about(service, "worker", "trace-4711")) and len(w) == 2 and w
    )
    assert begun["job_id"] == ended["job_id"] == job_id
    assert begun["attempt"] == 1
    assert (ended["outcome"], ended["completion_tokens"]) == ("completed", 3)
    (access,) = until(lambda: lines_about(service, "web", "trace-4711"))
    assert access["request_id"] == "trace-4711"
    assert (access["method"], access["path"], access["status"]) == ("POST", "/v1/completions", 200)
    assert (access["job_id"], access["model"]) == (job_id, MODEL)
    assert access["api_key"]
    for name in ("web", "worker", "cpu-worker"):
        text = (service.home / "log" / f"{name}.log").read_text()
        assert service.key not in text
        assert prompt not in text
        for line in text.splitlines():
            if line.startswith("{"):  # else said by `up`, or by a library at import
                assert json.loads(line)["timestamp"], line


def test_a_refusal_says_why_in_the_log(service):
    key = service.manage("create_api_key", "refused", "--organization", "refused").strip()
    with service.http(key) as http:
        http.post("/v1/completions", json={"model": "none"}, headers={"X-Request-Id": "refused-1"})
        (access,) = until(lambda: lines_about(service, "web", "refused-1"))
        assert (access["status"], access["code"]) == (404, "model_not_found")
        assert access["param"] == "model"

        def find_count():
            buckets = http.get("/v1/usage").json()["data"]
            rows = [row for bucket in buckets for row in bucket["refusals"]]
            return [row for row in rows if row["code"] == "model_not_found"]

        (row,) = until(find_count)
    assert row["message"].startswith("model: the answer may quote the request")


def metrics(http, part=None):
    answer = http.get(
        "/metrics",
        params={"part": part} if part else {},
        headers={"Authorization": f"Bearer {METRICS_TOKEN}"},
    )
    assert answer.status_code == 200, answer.text
    return list(text_string_to_metric_families(answer.text))


def test_the_metrics_tell_of_web_queue_and_worker(http, tokenize):
    call = {"model": MODEL, "prompt": tokenize("Count me"), "max_tokens": 6, "min_tokens": 6}
    answer = http.post("/v1/completions", json=call)
    assert answer.status_code == 200, answer.text

    counts = [
        f"quire_{name}_seconds_count"
        for name in ("time_to_first_token", "inter_token_latency", "request_queue_time")
    ]

    def generated():
        """Return the largest samples of all workers by name, once one counts the request."""
        found = [s for f in metrics(http) for s in f.samples]
        found = [s for s in found if s.labels.get("model_name", MODEL) == MODEL]
        samples = {s.name: s for s in sorted(found, key=lambda s: s.value)}
        least = {"quire_generation_tokens_total": 6, **dict.fromkeys(counts, 1)}
        complete = all(name in samples and samples[name].value >= least[name] for name in least)
        return samples if complete else None

    samples = until(generated)
    assert samples["quire_generation_tokens_total"].labels["model_name"] == MODEL
    assert samples["quire_redis_up"].value == 1
    assert samples["quire_workers"].value >= 1  # one killed by another test counts for ten seconds
    assert samples["quire_http_requests_total"].value >= 1
    assert {s.name for f in metrics(http, "web") for s in f.samples}.isdisjoint({"quire_workers"})


def test_dashboard_and_alerts_ask_for_what_there_is(http):
    known = {s.name for f in metrics(http) for s in f.samples}
    known |= {"quire_refusals_total"}  # none may have happened yet
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    asked = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    dashboard = json.loads((ROOT / "deploy/grafana/quire.json").read_text())
    asked += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for expr in asked for name in re.findall(r"quire_\w+", expr)}
    assert len(names) > 20
    assert names <= known, names - known
