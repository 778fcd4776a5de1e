"""Takes the pictures in docs/screenshots anew, from made-up usage.

    python -m tests.acceptance.pages.screenshots [NAME ...]

Look at each before it is committed.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.acceptance.pages import browser
from tests.acceptance.service import MODEL, ROOT, Installation, ScriptedInstallation

FOLDER = ROOT / "docs" / "screenshots"
DESKTOP, PHONE = (1280, 800), (390, 844)
CONSOLE = (
    "login", "playground", "playground-phone", "playground-error", "results", "results-phone",
    "new-batch", "batch",
)  # fmt: skip
GRAMMAR = """root ::= colour (", " colour){2} "."
colour ::= "red" | "green" | "blue"
"""


PROVIDER = {
    "QUIRE_OIDC_ISSUER": "https://id.example.com", "QUIRE_OIDC_CLIENT_ID": "quire",
    "QUIRE_OIDC_CLIENT_SECRET": "unused", "QUIRE_OIDC_NAME": "Example",
    "QUIRE_OIDC_ROLES": "staff=Viewer",
}  # fmt: skip
REVIEW = {
    "type": "object", "additionalProperties": False, "required": ["mood", "again", "why"],
    "properties": {
        "mood": {"enum": ["good", "mixed", "bad"]}, "again": {"type": "boolean"},
        "why": {"type": "string", "maxLength": 60},
    },
}  # fmt: skip
GUESTS = (
    "The room was quiet, the bed soft, and breakfast came with a view of the harbour.",
    "Two hours at the desk, no hot water, and the lift smelled of paint.",
    "Fine for one night. The walls are thin, but the staff solved everything at once.",
    "We came for a wedding and stayed a week. The garden alone is worth it.",
    "The photos are ten years old. So is the carpet.",
)


def take_pictures(folder: Path, names: Sequence[str] = ()) -> None:
    """Take all pictures, or those named; of CONSOLE, all or none."""
    if not names or set(names) & set(CONSOLE):
        with tempfile.TemporaryDirectory() as home, Installation(Path(home), **PROVIDER) as real:
            take_console(real, folder)
    if names and not set(names) - set(CONSOLE):
        return
    with tempfile.TemporaryDirectory() as home, ScriptedInstallation(Path(home), 0.2) as service:
        service.manage("example_data", "--requests", "20000")
        with service.http() as client:
            for _ in range(7):
                job = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 4000, "background": True}
                client.post("/v1/completions", json=job).raise_for_status()
        with browser.chromium() as chromium:
            page = chromium.new_page()
            browser.log_in(page, service)
            take(page, service.url, folder, names)


def reviewed(service: Installation) -> str:
    """A batch that the model ran: some answers are cut, one line is refused."""
    service.manage(
        "shell", "-v0", "-c",
        "from completions.models import Organization; Organization.objects.update(store_prompts=1)",
    )  # fmt: skip
    lines = [
        {"custom_id": f"review-{n:03}", "method": "POST", "url": "/v1/chat/completions", "body": {
            "model": MODEL, "json_schema": REVIEW, "seed": n,
            "max_tokens": -1 if n == 5 else 12 if n % 4 == 3 else 80,
            "messages": [{"role": "user", "content": f"Sort this review: {GUESTS[n % 5]}"}],
        }}
        for n in range(1, 31)
    ]  # fmt: skip
    with service.client() as client:
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        file = client.files.create(file=("reviews.jsonl", content), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        while client.batches.retrieve(batch.id).status not in ("completed", "failed"):
            time.sleep(1)
        return batch.id


def look(page: browser.Page, size: tuple[int, int], scheme: str) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    # A page that is open keeps the theme that it was loaded with.
    page.evaluate(
        "dark => document.documentElement.classList.toggle('dark', dark)", scheme == "dark"
    )


def take_console(service: Installation, folder: Path) -> None:
    """The pictures of CONSOLE, which need a real engine."""
    made = reviewed(service)
    with browser.chromium() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{service.url}/admin/")
        page.screenshot(path=folder / "login.png")
        browser.log_in(page, service)
        page.goto(f"{service.url}/admin/playground/")
        page.get_by_role("textbox", name="Content", exact=True).fill("Name three colours.")
        page.select_option("[name=kind]", "ebnf")
        page.locator("[name=constraint]").fill(GRAMMAR)
        page.locator("#verdict[data-tone=good]").wait_for()
        page.locator("#run").click()
        page.get_by_text("Ended: stop").wait_for(timeout=120_000)
        page.get_by_role("button", name="curl").click()
        look(page, (1280, 1000), "light")
        page.screenshot(path=folder / "playground.png")
        look(page, PHONE, "dark")
        page.locator(".q-answer").first.evaluate("card => card.scrollIntoView()")
        page.screenshot(path=folder / "playground-phone.png")
        page.locator("[name=constraint]").fill(GRAMMAR.replace('"blue"', "blue"))
        page.locator("#verdict[data-tone=bad]").wait_for()
        page.locator("#editor").evaluate("box => box.scrollIntoView({block: 'center'})")
        page.screenshot(path=folder / "playground-error.png")
        look(page, (1280, 900), "light")
        for name, path in (
            ("new-batch", "/admin/batches/new/"),
            ("batch", f"/admin/completions/batch/{made}/change/"),
        ):
            page.goto(f"{service.url}{path}")
            page.screenshot(path=folder / f"{name}.png")
        page.goto(f"{service.url}/admin/batches/{made}/results/")
        page.screenshot(path=folder / "results.png")
        look(page, PHONE, "dark")
        page.goto(f"{service.url}/admin/batches/{made}/results/?reason=length")
        page.locator("table").evaluate("table => table.scrollIntoView()")
        page.screenshot(path=folder / "results-phone.png")


def take(page: browser.Page, url: str, folder: Path, names: Sequence[str]) -> None:
    page.goto(f"{url}/admin/completions/usagerecord/?status=failed")
    job_page = page.locator("#result_list a.q-link").first.get_attribute("href") or ""
    pictures = (
        ("dashboard-light", "/admin/", DESKTOP, "light", True),
        ("dashboard-dark", "/admin/?period=30d", DESKTOP, "dark", True),
        ("phone", "/admin/", PHONE, "light", False),
        ("usage", "/admin/usage/?by=key", DESKTOP, "light", True),
        ("usage-phone", "/admin/usage/?by=key", PHONE, "dark", False),
        ("keys", "/admin/completions/apikey/", DESKTOP, "light", False),
        ("job-dark", job_page, DESKTOP, "dark", True),
        ("live", "/admin/live/", DESKTOP, "light", False),
    )
    for name, path, (width, height), scheme, whole in pictures:
        if names and name not in names:
            continue
        look(page, (width, height), scheme)
        page.goto(url + path, wait_until="networkidle")
        if whole:  # in a window that long: the side bar ends where the window does
            tall = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size({"width": width, "height": max(height, tall)})
            page.wait_for_load_state("networkidle")
        page.screenshot(path=folder / f"{name}.png", full_page=whole)


if __name__ == "__main__":
    take_pictures(FOLDER, sys.argv[1:])
