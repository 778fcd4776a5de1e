"""A real browser on the admin: Debian's chromium, without a window, driven by Playwright."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from tests.acceptance.service import Installation

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SLOWLY = 240_000
"""Milliseconds that the browser waits on a busy machine for what comes by itself."""
LAPTOP, PHONE = {"width": 1366, "height": 768}, {"width": 390, "height": 844}
USER, PASSWORD = "operator", "looks at night"
_MAKE_USER = (
    "from django.contrib.auth.models import User;"
    f"User.objects.filter(username={USER!r}).exists()"
    f" or User.objects.create_superuser({USER!r}, password={PASSWORD!r})"
)
_ADD_MEMBER = """
from django.contrib.auth.models import User
from completions.accounts import changes, members
from completions.accounts.audit import SERVICE
from completions.models import Membership
user = User.objects.create_user({user!r}, password={password!r})
organization = changes.find_organization({organization!r}, SERVICE)
members.save(Membership(organization=organization, user=user, role={role!r}), SERVICE)
"""
RULES = ("landmark-one-main", "skip-link", "region")
"""Rules of axe-core that count although their findings are moderate."""
_FIND_FAULTS = """async rules => (await axe.run()).violations
  .filter(each => ["serious", "critical"].includes(each.impact) || rules.includes(each.id))
  .map(each => [each.id, ...each.nodes.map(node => node.html.slice(0, 200))])"""


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Its sandbox refuses to run as root, which containers do.
        unboxed = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=unboxed)
        yield browser
        browser.close()


def open_page(browser: Browser, **context: Any) -> Page:
    """Open a page in a context of its own, with the options of Browser.new_context."""
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(SLOWLY)
    return page


def log_in(page: Page, service: Installation, user: str = USER, password: str = PASSWORD) -> None:
    """Ends on the page that was asked for: the dashboard, for members their usage. USER is made if
    need be."""
    if user == USER:
        service.manage("shell", "-v0", "-c", _MAKE_USER)
    page.goto(f"{service.url}/admin/")
    page.fill("[name=username]", user)
    page.fill("[name=password]", password)
    page.click("button[type=submit]")
    page.wait_for_url(lambda url: "/login/" not in url)


def reload_until(page: Page, url: str, wanted: Locator) -> None:
    """Open a page again and again until it has something: what the service counts or stores is in
    SQL within seconds."""
    deadline = time.monotonic() + SLOWLY / 1000
    page.goto(url)
    while not wanted.count():
        assert time.monotonic() < deadline, page.locator("body").inner_text()
        time.sleep(0.2)
        page.goto(url)


def add_member(service: Installation, user: str, organization: str, role: str = "member") -> None:
    """Make a user with PASSWORD who belongs to an organization, which is made if need be."""
    values = {"user": user, "organization": organization, "role": role, "password": PASSWORD}
    service.manage("shell", "-v0", "-c", _ADD_MEMBER.format(**values))


def open_organization(service: Installation, name: str) -> httpx.Client:
    """Make an organization that stores prompts. Returns a client with its key, named "of NAME"."""
    make = "from completions.models import Organization as O; O.objects.update_or_create"
    service.manage("shell", "-v0", "-c", f"{make}(name={name!r}, defaults={{'store_prompts': 1}})")
    secret = service.manage("create_api_key", f"of {name}", "--organization", name)
    return service.http(secret.strip())


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


def find_faults(page: Page) -> list[list[str]]:
    """Return what axe-core finds serious in a page whose context bypasses its security policy."""
    if find_spec("axe_playwright_python") is None:
        pytest.skip("no axe-playwright-python (requirements-dev.txt)")
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    findings: list[list[str]] = page.evaluate(_FIND_FAULTS, RULES)
    return findings
