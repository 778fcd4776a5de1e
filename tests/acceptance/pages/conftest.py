"""One browser for each file, and a page of an operator whose scripts must not fail."""

from collections.abc import Iterator

import pytest

from tests.acceptance.pages import browser
from tests.acceptance.service import Installation


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    if browser.CHROMIUM is None:
        pytest.skip("no chromium (Debian: chromium)")
    with browser.chromium() as chromium:
        yield chromium


@pytest.fixture
def page(chromium: browser.Browser, service: Installation) -> Iterator[browser.Page]:
    """A page of a superuser on a small laptop."""
    faults: list[str] = []
    page = browser.open_page(chromium, viewport=browser.LAPTOP)
    page.on("pageerror", lambda error: faults.append(str(error)))
    browser.log_in(page, service)
    yield page
    page.context.close()
    assert faults == []
