"""Takes the pictures in docs/screenshots anew, from made-up usage.

    python -m tests.acceptance.screenshots [NAME ...]

Look at each before it is committed.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.acceptance import browser
from tests.acceptance.service import MODEL, ROOT, ScriptedInstallation

FOLDER = ROOT / "docs" / "screenshots"
DESKTOP, PHONE = (1280, 800), (390, 844)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, ScriptedInstallation(Path(home), 0.2) as service:
        service.manage("example_data", "--requests", "20000")
        with service.http() as client:
            for _ in range(7):
                job = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 4000, "background": True}
                client.post("/v1/completions", json=job).raise_for_status()
        with browser.chromium() as chromium:
            page = chromium.new_page()
            browser.log_in(page, service)
            take(page, service.url, sys.argv[1:])


def take(page: browser.Page, url: str, names: Sequence[str]) -> None:
    """All pictures, or those named."""
    page.goto(f"{url}/admin/completions/usagerecord/?status=failed")
    job_page = page.locator("#result_list a.q-link").first.get_attribute("href") or ""
    pictures = (
        ("dashboard-light", "/admin/", DESKTOP, "light", True),
        ("dashboard-dark", "/admin/?period=30d", DESKTOP, "dark", True),
        ("phone", "/admin/", PHONE, "light", False),
        ("keys", "/admin/completions/apikey/", DESKTOP, "light", False),
        ("job-dark", job_page, DESKTOP, "dark", True),
        ("live", "/admin/live/", DESKTOP, "light", False),
    )
    for name, path, (width, height), scheme, whole in pictures:
        if names and name not in names:
            continue
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.goto(url + path, wait_until="networkidle")
        if whole:  # in a window that long: the side bar ends where the window does
            tall = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size({"width": width, "height": max(height, tall)})
            page.wait_for_load_state("networkidle")
        page.screenshot(path=FOLDER / f"{name}.png", full_page=whole)


if __name__ == "__main__":
    main()
