"""No page has a serious finding of axe-core, by day and by night, on a desk and on a phone; what
the mouse reaches, Tab reaches too; and each list shows its last column on a small laptop."""

import re
from collections.abc import Iterator

import pytest

from tests.acceptance.pages import browser
from tests.acceptance.service import Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.wide]
TABLES = (
    "apikey", "auditentry", "batch", "file", "membership", "organization", "refusal", "session",
    "usagehour", "usagerecord", "webhookdelivery", "webhookendpoint", "wrongkey",
)  # fmt: skip
LISTS = (
    *(f"/admin/completions/{table}/" for table in TABLES),
    "/admin/auth/user/", "/admin/auth/group/",
)  # fmt: skip
PAGES = (
    "/", "/nothing", "/admin/", "/admin/usage/?range=7d&by=key", "/admin/usage/?model=none",
    "/admin/usage/?by=color", "/admin/live/", "/admin/playground/", "/admin/workers/",
    "/admin/models/", "/admin/completions/apikey/add/", "/admin/completions/apikey/1/change/",
    "/admin/completions/organization/1/change/", "/admin/completions/webhookendpoint/add/",
    "/admin/auth/user/add/", "/admin/auth/user/1/change/", "/admin/auth/group/1/change/",
    "/admin/password_change/", *LISTS,
)  # fmt: skip
MAKE_BATCH = """
from completions.models import ApiKey, Organization
from tests.completions.console.batch_of_results import reviewed_batch
key = ApiKey.objects.select_related("organization").get(name="tests")
Organization.objects.update(store_prompts=True)
print(reviewed_batch(key, 60).id)
"""
LAST_COLUMN = """() => {
  const heads = document.querySelectorAll("#result_list thead th");
  return heads.length ? heads[heads.length - 1].getBoundingClientRect().right : 0;
}"""
FOCUSED = """() => {
  const at = document.activeElement;
  return at.ariaLabel || at.innerText.replace(/\\s+/g, " ").trim();
}"""


@pytest.fixture(scope="module", autouse=True)
def _rows(service: Installation) -> Iterator[None]:
    """Something in each list."""
    service.manage("example_data", "--requests", "300", "--days", "2")
    browser.add_member(service, 10 * "long", "default")
    yield
    service.manage("example_data", "--remove")


def open_page(
    chromium: browser.Browser, service: Installation, size: dict[str, int], scheme: str
) -> browser.Page:
    """A page of a user who is logged in, into which a test may put scripts of its own."""
    page = browser.open_page(chromium, viewport=size, color_scheme=scheme, bypass_csp=True)
    page.goto(f"{service.url}/admin/login/")
    assert browser.find_faults(page) == []
    browser.log_in(page, service)
    return page


@pytest.mark.long
@pytest.mark.parametrize("size", [browser.LAPTOP, browser.PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_finding(
    chromium: browser.Browser, service: Installation, size: dict[str, int], scheme: str
):
    page = open_page(chromium, service, size, scheme)
    made = service.manage("shell", "-v0", "-c", MAKE_BATCH).strip()
    results = f"/admin/batches/{made}/results/"
    own = (f"/admin/completions/batch/{made}/change/", results, f"{results}?text=x", f"{results}7/")
    findings = {}
    for path in (*PAGES, *own):
        page.goto(service.url + path)
        if found := browser.find_faults(page):
            findings[path] = found
    page.context.close()
    assert findings == {}


@pytest.mark.long
def test_a_small_laptop_shows_the_last_column(chromium: browser.Browser, service: Installation):
    name = 20 * "long"
    key = service.manage("create_api_key", name, "--organization", name).strip()
    with service.client(key) as client:
        client.files.create(file=(f"{3 * name}.jsonl", b"{}"), purpose="batch")
    page = open_page(chromium, service, browser.LAPTOP, "light")
    ends = {}
    for path in LISTS:
        page.goto(service.url + path)
        ends[path] = page.evaluate(LAST_COLUMN)
    page.context.close()
    assert {path: end for path, end in ends.items() if end > browser.LAPTOP["width"]} == {}
    assert any(ends.values())


@pytest.mark.long
def test_a_phone_names_the_first_cell(chromium: browser.Browser, service: Installation):
    page = open_page(chromium, service, browser.PHONE, "light")
    page.goto(f"{service.url}/admin/completions/usagerecord/")
    first = page.locator("#result_list tbody tr").first.locator("> *").first
    assert first.get_attribute("data-label") == "Request"
    page.context.close()


@pytest.mark.long
def test_tab_reaches_the_shell(chromium: browser.Browser, service: Installation):
    page = open_page(chromium, service, browser.LAPTOP, "light")
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED) == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "page-main"

    page.goto(f"{service.url}/admin/")
    names = []
    for _ in range(60):
        page.keyboard.press("Tab")
        names.append(page.evaluate(FOCUSED))
        if names[-1] == "Sidebar":
            break
    assert names[-1] == "Sidebar"
    assert any(browser.USER in name for name in names)
    page.keyboard.press("Enter")
    page.locator("#nav-sidebar").wait_for(state="hidden")
    page.keyboard.press("Enter")
    page.locator("#nav-sidebar").wait_for(state="visible")

    page.get_by_role("button", name=browser.USER).press("Enter")
    page.get_by_role("button", name="Dark").press("Enter")
    page.wait_for_function("document.documentElement.classList.contains('dark')")
    page.keyboard.press("Escape")
    page.locator("#user-menu").wait_for(state="hidden")
    page.context.close()


def test_a_table_has_the_figures_of_each_chart(chromium: browser.Browser, service: Installation):
    page = open_page(chromium, service, browser.LAPTOP, "light")
    assert page.locator("canvas").count() == page.locator(".q-figures table").count() > 0
    page.locator(".q-figures summary").first.click()
    assert page.locator(".q-figures tbody tr").first.is_visible()
    page.context.close()


@pytest.mark.long
def test_the_start_page_and_a_missing_page_lead_on(
    chromium: browser.Browser, service: Installation
):
    page = chromium.new_page()
    page.set_default_timeout(browser.SLOWLY)
    page.goto(f"{service.url}/nothing")
    page.get_by_role("link", name="Start page").click()
    assert f"{service.url}/v1" in page.locator("main").inner_text()
    page.get_by_role("link", name="Console").click()
    page.wait_for_url(re.compile("/admin/login/"))
    page.context.close()


@pytest.mark.long
def test_the_reference_is_dark_at_night(chromium: browser.Browser, service: Installation):
    page = chromium.new_page(color_scheme="dark")
    page.set_default_timeout(browser.SLOWLY)
    page.goto(f"{service.url}/docs")
    page.locator(".swagger-ui .info").wait_for()
    red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]")
    assert int(red) < 64
    page.context.close()
