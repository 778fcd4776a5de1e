"""What an operator decides, in a real browser: whose keys work, and which workers take jobs."""

import pytest
from playwright.sync_api import Dialog

from tests.acceptance.pages import browser
from tests.acceptance.service import MODEL, Installation, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.long]
TABLES = "/admin/completions"
TENANT = "Tenant"


@pytest.fixture(scope="module")
def tenant(service: Installation) -> str:
    """The secret of a key of an organization of the tests' own."""
    return service.manage("create_api_key", "its key", "--organization", TENANT).strip()


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
        status = 401 if suspended else 200
        with service.http(tenant) as client:  # web processes hear of it within a second
            wait_until(lambda: client.get("/v1/models").status_code == status)  # noqa: B023 - at once

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


def test_a_role_is_enough_to_sign_in(
    page: browser.Page, chromium: browser.Browser, service: Installation
) -> None:
    """An operator makes a user and gives a role: the user signs in, looks, and changes nothing."""
    page.goto(f"{service.url}/admin/auth/user/add/")
    page.fill("[name=username]", "vera")
    for name in ("password1", "password2"):
        page.fill(f"[name={name}]", browser.PASSWORD)
    page.locator("[name=_save]").click()
    page.wait_for_url("**/auth/user/*/change/")
    page.select_option("[name=groups_old]", label="Viewer")
    page.locator("#id_groups_add").click()
    page.locator("[name=_save]").click()
    page.get_by_text("has a role").wait_for()

    viewer = browser.open_page(chromium)
    browser.log_in(viewer, service, "vera")
    assert viewer.url == f"{service.url}/admin/"
    viewer.goto(f"{service.url}{TABLES}/apikey/")
    viewer.locator("#result_list").wait_for()
    assert viewer.locator("a[href$='/apikey/add/']").count() == 0
    viewer.context.close()
