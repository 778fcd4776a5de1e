"""A member makes a batch in a real browser: dropped, forecast, started, watched, its results
filtered, read and downloaded, and what failed sent again; a stranger sees none of it."""

import csv
import json
import re

import pyarrow.parquet as pq
import pytest

from tests.acceptance.pages import browser
from tests.acceptance.service import MODEL, Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.wide]
LINES, PILOT, BAD = 12, 3, 5
_STORE_PROMPTS = """
from completions.accounts import changes
from completions.accounts.audit import SERVICE
from completions.models import Membership
for member in Membership.objects.filter(user__username__in=("nina", "olaf")):
    member.organization.store_prompts = True
    member.organization.save()
    key, _ = changes.create(member.organization, f"of {member.user.username}", SERVICE)
    key.owner = member.user
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


@pytest.fixture(scope="module", autouse=True)
def _members(service: Installation) -> None:
    """Two members of two organizations, each with a key."""
    browser.add_member(service, "nina", "Night shift")
    browser.add_member(service, "olaf", "Day shift")
    service.manage("shell", "-v0", "-c", _STORE_PROMPTS)


def enter(chromium: browser.Browser, service: Installation, user: str) -> browser.Page:
    page = browser.open_page(chromium, bypass_csp=True)
    browser.log_in(page, service, user)
    return page


@pytest.mark.long
def test_a_night(chromium: browser.Browser, service: Installation) -> None:
    faults: list[str] = []
    page = enter(chromium, service, "nina")
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())
    forecast(page, service)
    batch = page.url
    assert browser.find_faults(page) == []
    page.get_by_role("button", name="Start").press("Enter")
    results = page.get_by_role("link", name="Results", exact=True)
    results.wait_for()  # the page renews itself
    shown = page.locator("#batch").inner_text()
    assert f"line {BAD}: temperature" in shown.replace("body.", "")
    assert browser.find_faults(page) == []
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
    assert browser.find_faults(page) == []
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
    assert browser.find_faults(page) == []
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


@pytest.mark.long
def test_pasted_lines_start_at_once(chromium: browser.Browser, service: Installation) -> None:
    page = enter(chromium, service, "nina")
    page.goto(f"{service.url}/admin/batches/new/")
    page.fill("[name=lines]", make_lines().splitlines()[0].strip())
    page.get_by_role("button", name="Start now").press("Enter")
    page.wait_for_url(re.compile("/admin/completions/batch/batch_.*/change/"))
    page.get_by_role("link", name="Results", exact=True).wait_for()
    assert "1 completed" in page.locator("#batch").inner_text()
    page.context.close()


def test_a_batch_is_cancelled(chromium: browser.Browser, service: Installation) -> None:
    """And its page says by whom."""
    page = enter(chromium, service, "nina")
    page.on("dialog", lambda dialog: dialog.accept())
    body = {"model": MODEL, "prompt": [9703], "max_tokens": 4000, "ignore_eos": True}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    page.goto(f"{service.url}/admin/batches/new/")
    page.fill("[name=lines]", json.dumps(line))
    page.get_by_role("button", name="Start now").press("Enter")
    page.get_by_role("button", name="Cancel batch").press("Enter")
    page.get_by_text("The batch sends no more lines.").wait_for()
    assert "Cancelled by admin:nina" in page.locator("#details").inner_text()
    page.locator("#batch .q-label", has_text=re.compile("^cancelled$")).first.wait_for()
    page.context.close()
