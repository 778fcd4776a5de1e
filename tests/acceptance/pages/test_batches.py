"""A member makes a batch in a real browser: dropped, forecast, started, watched, its results
filtered, read and downloaded, and what failed sent again; a stranger sees none of it."""

import csv
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec

import pyarrow.parquet as pq
import pytest

from tests.acceptance.pages import browser
from tests.acceptance.pages.test_accessibility import find
from tests.acceptance.service import MODEL, Installation

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium (Debian: chromium)"),
    pytest.mark.skipif(
        find_spec("axe_playwright_python") is None,
        reason="no axe-playwright-python (requirements-dev.txt)",
    ),
]
SLOWLY = 240_000
PASSWORD = "looks at night"
LINES, PILOT, BAD = 12, 3, 5
_MAKE = f"""
from django.contrib.auth.models import User
from completions.accounts import changes, members
from completions.accounts.audit import SERVICE
from completions.models import Membership
for name, place in (("nina", "Night shift"), ("olaf", "Day shift")):
    organization = changes.find_organization(place, SERVICE)
    organization.store_prompts = True
    organization.save()
    user = User.objects.create_user(name, password={PASSWORD!r})
    members.save(Membership(organization=organization, user=user, role="member"), SERVICE)
    key, _ = changes.create(organization, f"of {{name}}", SERVICE)
    key.owner = user
    key.save()
"""
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "warm": {"type": "boolean"}},
    "required": ["colour", "warm"],
    "additionalProperties": False,
}
COUNT_SHARES = """() => document.addEventListener(
    "htmx:xhr:progress", ({detail}) => window.noteShare(detail.loaded / detail.total))"""


def make_lines() -> str:
    """Lines that are larger together than what a page takes from a stranger."""
    lines = [
        {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": {
            "model": MODEL, "json_schema": SCHEMA, "max_tokens": 60, "close": True, "seed": number,
            "temperature": 9 if number == BAD else 1,
            "messages": [{"role": "user", "content": f"Colour {number}?"}],
        }}
        for number in range(1, LINES + 1)
    ]  # fmt: skip
    return "".join(json.dumps(line) + 20_000 * " " + "\n" for line in lines)


@pytest.fixture(scope="module")
def chromium(service: Installation) -> Iterator[browser.Browser]:
    service.manage("shell", "-v0", "-c", _MAKE)
    with browser.chromium() as chromium:
        yield chromium


def enter(chromium: browser.Browser, service: Installation, user: str) -> browser.Page:
    page = chromium.new_context(bypass_csp=True).new_page()
    page.set_default_timeout(SLOWLY)
    page.goto(f"{service.url}/admin/")
    page.fill("[name=username]", user)
    page.fill("[name=password]", PASSWORD)
    page.click("button[type=submit]")
    page.wait_for_url(f"{service.url}/admin/usage/")
    return page


def test_a_night(chromium: browser.Browser, service: Installation) -> None:
    faults: list[str] = []
    page = enter(chromium, service, "nina")
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())
    forecast(page, service)
    batch = page.url
    assert find(page) == []
    page.get_by_role("button", name="Start").press("Enter")
    results = page.get_by_role("link", name="Results", exact=True)
    results.wait_for()  # the page renews itself
    shown = page.locator("#batch").inner_text()
    assert f"line {BAD}: temperature" in shown.replace("body.", "")
    assert find(page) == []
    read_results(page)
    download(page)

    page.goto(batch)
    page.get_by_role("button", name=re.compile("^Resubmit 1 line")).press("Enter")
    page.get_by_text("This batch sends lines of").wait_for()
    assert "Reviews of the night" in page.locator("#batch").inner_text()
    again = page.url
    assert again != batch

    stranger = enter(chromium, service, "olaf")
    for address in (batch, again):
        assert "Reviews of the night" not in stranger.goto(address).text()  # type: ignore[union-attr]
    number = re.findall("batch_[0-9a-f]+", batch)[0]
    for path in ("", "1/", "download/?format=csv"):
        address = f"{service.url}/admin/batches/{number}/results/{path}"
        assert stranger.request.get(address).status == 404
    stranger.goto(f"{service.url}/admin/batches/new/")
    assert stranger.locator("[name=key] option").all_inner_texts() == ["Day shift / of olaf"]
    for each in (page, stranger):
        each.context.close()
    assert faults == []


def forecast(page: browser.Page, service: Installation) -> None:
    """Drop a file, and wait on its page until the pilot has run."""
    shares: list[float] = []
    page.expose_function("noteShare", lambda share: shares.append(share))
    page.goto(f"{service.url}/admin/completions/batch/")
    page.locator("a[href$='/batch/add/']").first.click()
    assert find(page) == []
    page.evaluate(COUNT_SHARES)
    make_drop = """text => {
        const data = new DataTransfer();
        data.items.add(new File([text], "night.jsonl"));
        return data;
    }"""
    dropped = page.evaluate_handle(make_drop, make_lines())
    page.dispatch_event(".q-drop", "drop", {"dataTransfer": dropped})
    assert page.input_value("[type=file]").endswith("night.jsonl")
    page.fill("[name=name]", "Reviews of the night")
    page.fill("[name=pilot]", str(PILOT))
    page.fill("[name=window]", "soon")
    page.get_by_role("button", name="Forecast first").press("Enter")
    page.get_by_text("It must be minutes, hours or days").wait_for()
    page.set_input_files(
        "[type=file]",
        {"name": "night.jsonl", "mimeType": "", "buffer": make_lines().encode()},
    )
    page.fill("[name=window]", "2h")
    page.get_by_role("button", name="Forecast first").press("Enter")
    page.wait_for_url(re.compile("/admin/completions/batch/batch_.*/change/"))
    assert max(shares) == 1.0
    page.get_by_text("Held: only its pilot runs until it is started.").wait_for()
    page.locator("#forecast", has_text=f"{PILOT} / {PILOT}").wait_for()
    assert "Forecast cost" in page.locator("#forecast").inner_text()


def read_results(page: browser.Page) -> None:
    counted = page.locator("a[href*='value=%2Fcolour']").first
    words = counted.inner_text()
    counted.click()
    rows = page.locator("#lines tbody tr")
    assert rows.count() == int(words.split()[-1])
    assert rows.first.locator("td").nth(4).inner_text() == json.loads(words.split()[0])
    page.goto(page.url.partition("?")[0])
    heads = page.locator("#lines thead th").all_inner_texts()
    assert heads == ["Line", "Status", "Ended", "custom_id", "colour", "warm", "Text or error"]
    assert rows.count() == LINES
    assert "temperature" in rows.nth(BAD - 1).inner_text()
    rows.first.get_by_role("link").press("Enter")
    page.get_by_role("link", name="Next", exact=True).press("Enter")
    page.get_by_role("heading", name="Line 2").first.wait_for()
    assert '"custom_id": "r2"' in page.locator("#output").inner_text()
    assert find(page) == []
    page.get_by_role("link", name="Previous", exact=True).press("Enter")
    page.get_by_role("link", name="Results", exact=True).press("Enter")
    rows.first.wait_for()


def download(page: browser.Page) -> None:
    for name in ("jsonl", "csv", "parquet"):
        with page.expect_download() as downloading:
            page.get_by_role("link", name=name).press("Enter")
        path = downloading.value.path()
        assert downloading.value.suggested_filename.endswith(f".{name}")
        if name == "jsonl":
            colours = [json.loads(line)["colour"] for line in path.read_text().splitlines()]
        elif name == "csv":
            with path.open(newline="") as file:
                colours = [row["colour"] or None for row in csv.DictReader(file)]
        else:
            colours = pq.read_table(path)["colour"].to_pylist()
        assert len(colours) == LINES
        assert [n for n, colour in enumerate(colours, 1) if colour is None] == [BAD]


def test_pasted_lines_start_at_once(chromium: browser.Browser, service: Installation) -> None:
    page = enter(chromium, service, "nina")
    page.goto(f"{service.url}/admin/batches/new/")
    page.fill("[name=lines]", make_lines().splitlines()[0].strip())
    page.get_by_role("button", name="Start now").press("Enter")
    page.wait_for_url(re.compile("/admin/completions/batch/batch_.*/change/"))
    page.get_by_role("link", name="Results", exact=True).wait_for()
    assert "1 completed" in page.locator("#batch").inner_text()
    page.context.close()
