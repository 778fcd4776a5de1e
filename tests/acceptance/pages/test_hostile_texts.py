"""Texts that clients and models write, in a real browser: they stay text, and break no page."""

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.pages import browser
from tests.acceptance.service import MODEL, Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.long]
EVIL = "\"'></textarea></script><script>window.hacked = 1</script><img src=x onerror=hacked=1>"
OVERRIDES = "a\u202eb\u2067c\u200fd"
NUL = "before\0after\x1b[31m\U0001f600"
WORD = "w" * 5_000
DEEP = "[" * 300 + json.dumps(EVIL) + "]" * 300
LARGE = "ab<b>\n" * 175_000
TEXTS = (EVIL, OVERRIDES, NUL, WORD, DEEP, LARGE, EVIL, EVIL, EVIL, EVIL)
"""The tenth line failed; its text is the message of the error."""
MAKE = f"""
import json
from datetime import datetime, timezone
from completions.models import ApiKey, BudgetWarning, Organization
from tests.completions.console.batch_of_results import ended_batch
texts = json.loads({json.dumps(json.dumps(TEXTS))})
whose, _ = Organization.objects.update_or_create(
    name=texts[0][:100], defaults=dict(store_prompts=True)
)
key = ApiKey.objects.create(
    organization=whose, name=texts[3][:50] + texts[0][:50], public_id="hostile", digest="0" * 64
)
BudgetWarning.objects.create(
    organization=whose, api_key=key, scope=f"k{{key.pk}}", budget="daily_token_budget",
    period=datetime.now(timezone.utc).date(), percent=95,
)
print(ended_batch(key, 12, texts).id)
"""


@pytest.fixture(scope="module")
def made(service: Installation) -> str:
    return service.manage("shell", "-v0", "-c", MAKE).strip()


@pytest.fixture
def page(page: browser.Page, made: str) -> Iterator[browser.Page]:
    """A page on a phone, in which no text was run as a script."""
    said: list[str] = []
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.set_viewport_size(browser.PHONE)
    yield page
    fits(page)
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert said == []


def fits(page: browser.Page) -> None:
    assert browser.find_overflow(page) == [], page.url


def test_warnings_of_budgets(page: browser.Page, service: Installation):
    page.goto(f"{service.url}/admin/")
    warning = page.get_by_text("has used 95 % of its daily token budget").first
    assert "<script>window.hacked" in warning.inner_text()


def test_results(page: browser.Page, service: Installation, made: str):
    page.goto(f"{service.url}/admin/batches/{made}/results/")
    lines = page.locator("#lines tbody tr")
    assert lines.count() == 12
    fits(page)
    for number, text in enumerate(TEXTS, 1):
        page.goto(f"{service.url}/admin/batches/{made}/results/{number}/")
        written = json.dumps(text, ensure_ascii=False)[1:-1]
        for part in ("#output", "#request"):
            assert written in page.locator(part).evaluate("part => part.textContent")
        fits(page)
        tall = page.evaluate("document.documentElement.scrollHeight")
        assert tall < 6000, "a long text scrolls in a box of its own"
    page.goto(f"{service.url}/admin/batches/{made}/results/?text=%3Cscript%3Ewindow.hacked")
    assert lines.count() == 6
    assert page.locator("[name=text]").input_value() == "<script>window.hacked"


@pytest.mark.parametrize(
    "text", [EVIL, "\u202eabc\u05d0\u05d1", "w" * 300], ids=["html", "rtl", "word"]
)
def test_the_playground_streams_it(page: browser.Page, service: Installation, text: str):
    """The constraint lets the model write this text alone."""
    page.evaluate("sessionStorage.clear()")
    page.goto(f"{service.url}/admin/playground/")
    page.select_option("[name=model]", MODEL)
    keys = page.locator("[name=key] option").all_inner_texts()
    page.select_option("[name=key]", index=next(i for i, key in enumerate(keys) if "tests" in key))
    page.locator("#messages [aria-label=Content]").fill(EVIL)
    page.select_option("[name=kind]", "ebnf")
    page.locator("[name=constraint]").fill(f"root ::= {json.dumps(text)}")
    page.locator("#verdict[data-tone=good]").wait_for()
    page.locator("[name=max_tokens]").fill("1000")
    page.locator("#run").click()
    page.get_by_text("Ended: stop").wait_for()
    assert (
        page.locator("[data-side=''] [data-part=text]").evaluate("part => part.textContent") == text
    )
    assert page.locator(".q-output :is(script, img)").count() == 0
    fits(page)
    page.locator("[name=constraint]").fill(f"root ::= {EVIL} {WORD}")
    page.locator("#verdict[data-tone=bad]").wait_for()
    assert page.locator("#editor script, #verdict script").count() == 0
