"""Why do this key's calls fail? An operator reads it in a real browser."""

import pytest

from tests.acceptance.pages import browser
from tests.acceptance.service import MODEL, Installation, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.long]
UNKNOWN = {"model": "no-such-model", "prompt": [9703]}
HOT = {"model": MODEL, "prompt": [9703], "temperature": 9}
WRONG = f"sk-{'Zz9' * 12}"


def test_refusals_are_counted_with_the_latest_answer(
    page: browser.Page, service: Installation
) -> None:
    """On the dashboard and on the pages of the key and its organization; each leads to its list."""
    with browser.open_organization(service, "Refused") as client:
        answers = [client.post("/v1/completions", json=body) for body in (UNKNOWN, UNKNOWN, HOT)]
    assert [answer.status_code for answer in answers] == [404, 404, 400]
    last = answers[1].json()["error"]["message"]

    key = page.locator("section.q-card", has_text="Refusals")
    browser.reload_until(
        page,
        f"{service.url}/admin/completions/refusal/?q=model_not_found",
        page.locator("#result_list tbody tr", has_text="of Refused"),
    )
    for table, name in (("apikey", "of Refused"), ("organization", "Refused")):
        page.goto(f"{service.url}/admin/completions/{table}/?q={name.replace(' ', '+')}")
        page.locator("#result_list").get_by_role("link", name=name).first.click()
        row = key.locator("tbody tr", has_text="model_not_found")
        assert row.locator("td").nth(1).inner_text() == "2"
        assert last in row.inner_text()
        assert "temperature" in key.inner_text()
    key.get_by_role("link", name="model_not_found").click()
    page.wait_for_url("**/admin/completions/refusal/?*")
    assert last in page.locator("#result_list").inner_text()
    page.goto(f"{service.url}/admin/")
    assert "model_not_found" in key.inner_text()


def test_wrong_keys_are_listed_by_beginning_and_address(
    page: browser.Page, service: Installation
) -> None:
    """And a key that was revoked says where it is still used."""
    secret = service.manage("create_api_key", "gone", "--organization", "Refused").strip()
    page.goto(f"{service.url}/admin/completions/apikey/?q=gone")
    page.locator("#result_list").get_by_role("link", name="gone").first.click()
    address = page.url
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Revoke key").click()
    page.get_by_text("is revoked").first.wait_for()
    for wrong in (secret, WRONG):
        with service.http(wrong) as client:
            # Web processes hear of it within a second.
            wait_until(lambda: client.get("/v1/models").status_code == 401)
    uses = page.locator("section.q-card", has_text="Uses after the end")
    browser.reload_until(page, address, uses)
    assert "api_key_revoked" in uses.inner_text()
    assert "127.0.0.1" in uses.inner_text()
    page.goto(f"{service.url}/admin/completions/wrongkey/")
    listed = page.locator("#result_list").inner_text()
    assert "invalid_api_key" in listed
    assert WRONG not in listed
