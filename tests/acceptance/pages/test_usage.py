"""What did this organization, key or batch use? The same panel answers on the page of each, in a
real browser."""

import csv
from collections.abc import Iterator

import pytest

from tests.acceptance.pages import browser
from tests.acceptance.service import Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.long]
COUNT = """() => Chart.getChart(document.querySelector('canvas.chart'))
    .data.datasets.flatMap(set => set.data).reduce((sum, each) => sum + (each || 0), 0)"""


@pytest.fixture(scope="module", autouse=True)
def _examples(service: Installation) -> Iterator[None]:
    service.manage("example_data", "--requests", "600", "--days", "3")
    yield
    service.manage("example_data", "--remove")


@pytest.mark.parametrize(
    ("table", "row", "asked"),
    [
        ("organization/", "Example: Documents", "organization="),
        ("apikey/", "nightly extraction", "key="),
        ("batch/?status__exact=completed", "Example: Documents", "batch=batch_"),
    ],
)
def test_the_panel_of_a_page(
    page: browser.Page, service: Installation, table: str, row: str, asked: str
) -> None:
    """Its bars and its CSV have the same sum; its link opens the same view."""
    page.goto(f"{service.url}/admin/completions/{table}")
    page.locator("#result_list tbody tr", has_text=row).first.get_by_role("link").first.click()
    page.wait_for_url("**/change/**")
    page.get_by_label("Show", exact=True).select_option("requests")
    page.wait_for_url("**show=requests**")
    page.wait_for_function("Chart.getChart(document.querySelector('canvas.chart'))")
    drawn = page.evaluate(COUNT)
    with page.expect_download() as downloading:
        page.get_by_role("link", name="CSV").click()
    rows = csv.DictReader(downloading.value.path().read_text().splitlines())
    assert sum(int(row["requests"]) for row in rows) == drawn > 0
    page.get_by_role("link", name="Open in Usage").click()
    page.wait_for_url(f"**/admin/usage/?*{asked}*")
    page.wait_for_function("Chart.getChart(document.querySelector('canvas.chart'))")
    assert page.evaluate(COUNT) == drawn
