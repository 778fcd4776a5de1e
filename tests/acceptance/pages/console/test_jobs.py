"""What did this request ask, answer and cost, and who ended it? Its page says so in a real
browser."""

import json
import re

import httpx
import pytest
from playwright.sync_api import Locator

from tests.acceptance.pages import browser
from tests.acceptance.service import MODEL, Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.long]
LOOK_UP = {"type": "function", "function": {"name": "look_up", "parameters": {
    "type": "object", "properties": {"word": {"enum": ["bug & moth"]}}, "required": ["word"],
    "additionalProperties": False,
}}}  # fmt: skip
CALL = {
    "model": MODEL, "messages": [{"role": "user", "content": "Look up bug."}], "tools": [LOOK_UP],
    "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200,
    "return_meta_info": True,
}  # fmt: skip


LONG = {
    "model": MODEL, "prompt": [9703], "max_tokens": 3000, "ignore_eos": True, "background": True,
}  # fmt: skip


def post(client: httpx.Client, path: str, body: dict[str, object]) -> str:
    """The path of the page of a new job."""
    answer = client.post(path, json=body).raise_for_status().json()
    return f"/admin/jobs/{answer['id']}/"


def find_card(page: browser.Page, title: str) -> Locator:
    heading = page.get_by_role("heading", name=re.compile(f"^{title}"))
    return page.locator("section").filter(has=heading)


def test_texts_that_became_visible_say_so(page: browser.Page, service: Installation) -> None:
    """A job is running while an operator turns on that its organization stores prompts."""
    secret = service.manage("create_api_key", "of a reader", "--organization", "Readers").strip()
    with service.http(secret) as client:
        job = service.url + post(client, "/v1/completions", LONG)
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(job)
    page.get_by_text("are neither stored nor shown").wait_for()
    page.get_by_role("link", name="Readers").first.click()
    page.get_by_label("Store prompts").set_checked(True, force=True)
    page.locator("[name=_save]").click()
    page.get_by_text("was changed successfully").wait_for()
    page.goto(job)
    page.get_by_text("its texts became visible when that was turned on").wait_for()
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_text("is cancelled").wait_for()


def test_an_answer_is_beside_its_prompt(page: browser.Page, service: Installation) -> None:
    """Where its organization stores both: tool calls are rendered, and the request is run again,
    copied, or opened in the playground."""
    with browser.open_organization(service, "Writers") as client:
        job = post(client, "/v1/chat/completions", CALL)
    again = page.get_by_role("button", name="Run again")
    browser.reload_until(page, service.url + job, again)
    prompt = find_card(page, "Prompt")
    assert "Look up bug." in prompt.inner_text()
    answer = find_card(page, "Answer tool_calls")
    assert "Calls look_up" in answer.inner_text()
    assert json.loads(answer.locator("pre").inner_text()) == {"word": "bug & moth"}
    assert "forced_tokens" in answer.inner_text()

    page.get_by_role("button", name="Copy as curl").click()
    curl = page.get_by_label("The request as curl").input_value()
    assert f"{service.url}/v1/completions" in curl
    page.get_by_role("link", name="Open in playground").click()
    page.locator("#verdict", has_text="Valid.").wait_for()
    assert "look_up" in page.input_value("[name=constraint]")
    page.go_back()
    again.click()
    page.wait_for_url(lambda url: "/admin/jobs/cmpl-" in url)


def test_it_says_who_cancelled_it(page: browser.Page, service: Installation) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    with service.http() as client:
        mine, theirs = (post(client, "/v1/completions", LONG) for _ in range(2))
        page.goto(service.url + mine)
        page.get_by_role("button", name="Cancel job").click()
        client.post(f"/v1/completions/{theirs.split('/')[3]}/cancel").raise_for_status()
    by_user = page.get_by_text(f"admin:{browser.USER} cancelled it.")
    browser.reload_until(page, service.url + mine, by_user)
    by_client = page.get_by_text("Its client cancelled it by a call of the API.")
    browser.reload_until(page, service.url + theirs, by_client)


def test_it_says_why_it_failed(page: browser.Page, service: Installation) -> None:
    """The dashboard's failures lead to the requests of an error, and these to their pages."""
    service.manage("example_data", "--requests", "600", "--days", "1")
    page.goto(f"{service.url}/admin/")
    failures = find_card(page, "Failures")
    failures.get_by_role("link", name="_error").or_(
        failures.get_by_role("link", name="_timeout")
    ).first.click()
    page.wait_for_url("**/usagerecord/**")
    page.locator("#result_list a.q-link").first.click()
    page.wait_for_url("**/admin/jobs/**")
    assert re.match(r"\w+_(error|timeout)\n", page.locator("[role=alert]").inner_text())
    service.manage("example_data", "--remove")
