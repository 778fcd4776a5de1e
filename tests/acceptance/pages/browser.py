"""A real browser on the admin: Debian's chromium, without a window, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

from tests.acceptance.service import Installation

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
USER, PASSWORD = "operator", "looks at night"
_MAKE_USER = (
    "from django.contrib.auth.models import User;"
    f"User.objects.filter(username={USER!r}).exists()"
    f" or User.objects.create_superuser({USER!r}, password={PASSWORD!r})"
)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Its sandbox refuses to run as root, which containers do.
        unboxed = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=unboxed)
        yield browser
        browser.close()


def log_in(page: Page, service: Installation, user: str = USER, password: str = PASSWORD) -> None:
    """Ends on the page that was asked for, the dashboard. USER is made if need be."""
    service.manage("shell", "-v0", "-c", _MAKE_USER)
    page.goto(f"{service.url}/admin/")
    page.fill("[name=username]", user)
    page.fill("[name=password]", password)
    page.click("button[type=submit]")
    page.wait_for_url(f"{service.url}/admin/")


def find_overflow(page: Page) -> list[str]:
    """Return the elements that make the page wider than its window, with their texts."""
    names: list[str] = page.evaluate(
        """() => {
            const edge = window.innerWidth;
            if (document.documentElement.scrollWidth <= edge) return [];
            const reaches = (element) => element.getBoundingClientRect().right > edge;
            const name = ({ tagName, id, className, textContent }) =>
                `${tagName} #${id} .${className}: ${textContent.slice(0, 99)}`;
            return [...document.querySelectorAll("body *")].filter(reaches).map(name);
        }"""
    )
    return names
