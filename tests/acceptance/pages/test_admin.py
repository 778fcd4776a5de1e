"""An operator's evening in a real browser: a key, a request, the charts, a job, a worker."""

import csv
from collections.abc import Iterator

import httpx
import pytest

from completions.jobs.connection import connect
from tests.acceptance.pages import browser
from tests.acceptance.service import MODEL, Installation, ended_job

pytestmark = pytest.mark.acceptance
LONG = {
    "model": MODEL, "prompt": [9703], "max_tokens": 3000, "ignore_eos": True, "background": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def visit(
    chromium: browser.Browser, service: Installation
) -> Iterator[tuple[browser.Page, list[str]]]:
    """A page of a user who is logged in, and the faults that occurred in it."""
    service.manage("example_data", "--requests", "600", "--days", "3")
    faults: list[str] = []
    page = browser.open_page(chromium)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda m: m.type == "error" and faults.append(m.text))
    page.on(
        "request",
        lambda r: r.url.startswith((service.url, "data:")) or faults.append(f"asked {r.url}"),
    )
    page.on("dialog", lambda dialog: dialog.accept())
    browser.log_in(page, service)
    yield page, faults
    service.manage("example_data", "--remove")


@pytest.fixture
def page(visit: tuple[browser.Page, list[str]]) -> Iterator[browser.Page]:
    page, faults = visit
    yield page
    assert faults == []


def test_a_key_is_made_used_and_its_request_found(page: browser.Page, service: Installation):
    page.goto(f"{service.url}/admin/completions/apikey/add/")
    page.fill("[name=name]", "from a browser")
    page.select_option("[name=organization]", index=1)
    page.click("button[name=_save]")
    secret = page.input_value("#secret")
    assert page.locator("#secret").count() == 1

    answer = httpx.post(
        f"{service.url}/v1/completions",
        json={"model": MODEL, "prompt": [9703], "max_tokens": 3},
        headers={"Authorization": f"Bearer {secret}"},
        timeout=120,
    ).raise_for_status()
    job_id, request_id = answer.json()["id"], answer.headers["x-request-id"]

    found = page.locator(f"code[title='{job_id}']")
    requests = f"{service.url}/admin/completions/usagerecord/"
    browser.reload_until(page, f"{requests}?q={request_id}", found)
    assert "completed" in page.locator("#result_list tbody").inner_text()

    page.keyboard.press("Control+k")
    # The palette opens in a later frame: what is typed before is lost.
    page.wait_for_function("document.activeElement.id == 'search-input-command'")
    page.locator("#search-input-command").press_sequentially(request_id)
    page.locator("#command-results a", has_text=job_id).click()
    page.wait_for_url(f"{service.url}/admin/jobs/{job_id}/")
    text = page.locator("#content").inner_text()
    for shown in (request_id, "from a browser", MODEL, "completed", "Timeline"):
        assert shown in text


@pytest.mark.long
def test_charts_are_drawn(page: browser.Page, service: Installation):
    for period in ("1h", "24h", "30d"):
        page.goto(f"{service.url}/admin/?period={period}", wait_until="load")
        page.wait_for_function("document.querySelectorAll('canvas.chart').length == 6")
        page.wait_for_function(
            "[...document.querySelectorAll('canvas.chart')].every(c => Chart.getChart(c))"
        )
    counted = page.evaluate(
        "Chart.getChart(document.querySelector('canvas.chart'))"
        ".data.datasets.flatMap(d => d.data).reduce((a, b) => a + b, 0)"
    )
    assert counted >= 590  # of the demo's; what other tests sent comes on top
    colours = page.evaluate(
        "(() => { const c = document.querySelector('canvas.chart');"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " return new Set(new Uint32Array(d.buffer)).size })()"
    )
    assert colours > 10
    assert "nightly extraction" in page.locator("#content").inner_text()


@pytest.mark.long
def test_usage_is_explored(page: browser.Page, service: Installation):
    """By a preset, a group, a measure and days; each view is an address; CSV has its sums."""
    page.goto(f"{service.url}/admin/")
    page.get_by_role("link", name="Explore usage").click()
    page.get_by_role("navigation", name="Range").get_by_role("link", name="7 days").click()
    page.get_by_label("by", exact=True).select_option("key")
    page.wait_for_url("**/admin/usage/?*by=key*")
    page.get_by_label("Show", exact=True).select_option("requests")
    page.wait_for_url("**/admin/usage/?*show=requests*")
    page.wait_for_function("document.querySelectorAll('canvas.chart').length == 2")
    page.wait_for_function(
        "[...document.querySelectorAll('canvas.chart')].every(c => Chart.getChart(c))"
    )
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    drawn = page.evaluate(
        "Chart.getChart(document.querySelector('canvas.chart'))"
        ".data.datasets.map(set => [set.label, set.data.reduce((a, b) => a + b, 0)])"
    )
    example = "nightly extraction"
    counted = sum(int(row["requests"]) for row in rows if row["api_key_name"] == example)
    assert dict(drawn)[example] == counted > 0

    page.get_by_role("link", name=example).first.click()
    page.wait_for_url("**/admin/usage/?*key=*")
    page.get_by_label("by", exact=True).select_option("batch")
    page.wait_for_url("**/admin/usage/?*by=batch*")
    page.get_by_role("link", name="page of batch_").first.click()
    page.wait_for_url("**/admin/completions/batch/batch_*/change/")
    page.get_by_role("link", name="Open in Usage").click()
    page.wait_for_url("**/admin/usage/?from=*&batch=batch_*")

    page.goto(f"{service.url}/admin/usage/?range=7d&by=key")
    page.get_by_label("from", exact=True).fill("2026-01-01")
    page.get_by_role("button", name="Go").click()
    page.wait_for_url("**/admin/usage/?*from=2026-01-01*")
    assert "per week" in page.locator("#page-main").inner_text()


@pytest.mark.wide
def test_a_job_is_cancelled(page: browser.Page, service: Installation, http: httpx.Client):
    job = http.post("/v1/completions", json=LONG).raise_for_status().json()["id"]
    page.goto(f"{service.url}/admin/live/")
    page.locator(f"code[title='{job}']").click()
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_text("is cancelled").wait_for()
    assert ended_job(http, f"/v1/completions/{job}")["status"] == "cancelled"


@pytest.mark.wide
def test_a_worker_is_drained_and_resumed(
    page: browser.Page, service: Installation, http: httpx.Client
):
    """A job that arrives meanwhile begins after the worker is resumed, not before."""
    page.goto(f"{service.url}/admin/workers/")
    worker = page.locator("section.q-card", has_text=MODEL)  # another serves another model
    worker.get_by_role("button", name="Drain").click()
    worker.locator(".q-label", has_text="drained").wait_for()  # the page updates itself
    job = http.post("/v1/completions", json={**LONG, "max_tokens": 2}).json()["id"]
    page.goto(f"{service.url}/admin/live/?state=queued")
    page.locator(f"code[title='{job}']").wait_for()
    page.goto(f"{service.url}/admin/workers/")
    with connect(service.redis_url) as client:
        seconds, micro = client.time()
        worker.get_by_role("button", name="Resume").click()
        assert ended_job(http, f"/v1/completions/{job}")["status"] == "completed"
        assert float(client.hget(f"quire:job:{job}", "started")) > seconds + micro / 1e6
    worker.locator(".q-label", has_text="serving").wait_for()


@pytest.mark.long
def test_phones_and_the_dark(page: browser.Page, service: Installation):
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    for path in (
        "",
        "usage/",
        "live/",
        "workers/",
        "models/",
        "completions/apikey/",
        "completions/batch/",
    ):
        page.goto(f"{service.url}/admin/{path}", wait_until="load")
        beyond = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert beyond <= 0, path
        assert "dark" in (page.locator("html").get_attribute("class") or "")
