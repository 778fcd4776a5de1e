"""The page of the OpenAPI document in a real browser."""

import pytest

from tests.acceptance.pages import browser
from tests.acceptance.service import Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.wide]


@pytest.mark.long
def test_a_key_is_used_and_not_kept(chromium: browser.Browser, service: Installation):
    faults: list[str] = []
    page = chromium.new_page()
    page.set_default_timeout(120_000)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda m: m.type == "error" and faults.append(m.text))
    its_own = "Deprecated: escaping deep link whitespace"  # of Swagger UI
    page.goto(f"{service.url}/docs")
    page.evaluate("localStorage.setItem('authorized', 'of an earlier version')")
    page.reload()
    page.get_by_role("button", name="Authorize").first.click()
    page.locator(".auth-container input").fill(service.key)
    page.locator(".auth-container").get_by_role("button", name="Apply credentials").click()
    page.get_by_role("button", name="Close").first.click()
    page.locator("[data-path='/v1/models']").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    page.locator(".live-responses-table .response-col_status", has_text="200").wait_for()
    stored = "JSON.stringify([localStorage, sessionStorage])"
    assert page.evaluate(stored) == "[{},{}]"
    page.reload()
    page.locator(".btn.authorize.unlocked").wait_for()
    assert [fault for fault in faults if not fault.startswith(its_own)] == []


def test_no_script_but_that_of_the_page_runs(chromium: browser.Browser, service: Installation):
    """Neither a script element that a text brought in, nor code in a text."""
    for path in ("/docs", "/admin/login/"):
        page = chromium.new_page()
        page.goto(f"{service.url}{path}")
        page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'),"
            " {textContent: 'window.ran = 1'}));"
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.ran=1>')"
        )
        # `wait_for_function` evaluates a string in the page, which its policy forbids, from its
        # second look on.
        page.evaluate(
            "Promise.all([...document.images].map(image => image.complete || new Promise(done =>"
            " ['load', 'error'].forEach(event => image.addEventListener(event, done)))))"
        )
        assert page.evaluate("window.ran") is None
        page.close()
