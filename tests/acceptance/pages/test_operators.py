"""What an operator decides, in a real browser: whose keys work, and which workers take jobs."""

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Dialog

from tests.acceptance.pages import browser
from tests.acceptance.service import MODEL, Installation

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.long,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium (Debian: chromium)"),
]
SLOWLY = 240_000
TABLES = "/admin/completions"
TENANT = "Tenant"


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    with browser.chromium() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def tenant(service: Installation) -> str:
    """The secret of a key of an organization of the tests' own."""
    return service.manage("create_api_key", "its key", "--organization", TENANT).strip()


@pytest.fixture
def page(chromium: browser.Browser, service: Installation) -> Iterator[browser.Page]:
    faults: list[str] = []
    with chromium.new_context(viewport={"width": 1366, "height": 900}) as context:
        page = context.new_page()
        page.set_default_timeout(SLOWLY)
        page.on("pageerror", lambda error: faults.append(str(error)))
        browser.log_in(page, service)
        yield page
    assert faults == []


def open_row(page: browser.Page, table: str, name: str) -> None:
    """Open the page of a row from its table."""
    page.goto(page.url.partition("/admin/")[0] + f"{TABLES}/{table}/")
    page.locator("#result_list").get_by_role("link", name=name).first.click()
    page.locator("[name=_save]").first.wait_for()


def test_an_organization_is_suspended_and_what_stands_against_its_end(
    page: browser.Page, service: Installation, tenant: str
) -> None:
    for suspended in (True, False):
        open_row(page, "organization", TENANT)
        page.get_by_label("Suspended").set_checked(suspended, force=True)
        page.locator("[name=_save]").click()
        page.get_by_text("was changed successfully").wait_for()
        state = "suspended" if suspended else "active"
        row = page.locator("#result_list tbody tr", has_text=TENANT)
        row.locator(".q-label", has_text=state).wait_for()
        deadline = time.monotonic() + SLOWLY / 1000
        with service.http(tenant) as client:  # web processes hear of it within a second
            while (client.get("/v1/models").status_code == 200) == suspended:
                assert time.monotonic() < deadline

    open_row(page, "organization", TENANT)
    page.get_by_role("link", name="Delete").click()
    page.get_by_text("API keys that are not revoked: 1. Revoke them.").wait_for()
    assert "permission" not in page.locator("#page-main").inner_text()


def test_the_last_worker_is_drained_only_on_demand(
    page: browser.Page, service: Installation
) -> None:
    questions: list[str] = []

    def decline(dialog: Dialog) -> None:
        questions.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", decline)
    page.goto(f"{service.url}/admin/workers/")
    worker = page.locator("section.q-card", has_text=MODEL)
    worker.get_by_role("button", name="Drain").click()
    assert MODEL in questions[0]
    page.reload()
    assert worker.get_by_role("button", name="Drain").count() == 1


def test_an_empty_list_says_what_it_is_for(page: browser.Page, service: Installation) -> None:
    page.goto(f"{service.url}{TABLES}/apikey/?q=no+such+name")
    page.get_by_text("Nothing matches “no such name”.").wait_for()
    page.get_by_role("link", name="Show all").click()
    page.locator("#result_list").wait_for()
    words = page.locator("#nav-sidebar").inner_text()
    assert "Deliveries" in words
    assert "deliverys" not in page.content()
