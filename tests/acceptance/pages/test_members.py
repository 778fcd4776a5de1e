"""A member, an organization's admin, an operator and a stranger in a real browser."""

import time
from collections.abc import Iterator

import pytest

from tests.acceptance.pages import browser
from tests.acceptance.service import MODEL, ScriptedInstallation

pytestmark = [pytest.mark.acceptance, pytest.mark.long]
KEYS = "/admin/completions/apikey/"


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedInstallation]:
    with ScriptedInstallation(tmp_path_factory.mktemp("members"), 0.02) as installation:
        browser.add_member(installation, "ada", "Research")
        browser.add_member(installation, "grace", "Research", "admin")
        browser.add_member(installation, "eve", "Elsewhere", "admin")
        yield installation


def enter(chromium: browser.Browser, service: ScriptedInstallation, user: str) -> browser.Page:
    page = browser.open_page(chromium)
    browser.log_in(page, service, user)
    assert page.url == f"{service.url}/admin/usage/"
    return page


def test_each_sees_what_is_theirs(
    chromium: browser.Browser, installation: ScriptedInstallation
) -> None:
    url = installation.url
    member = enter(chromium, installation, "ada")
    assert member.locator("a[href='/admin/workers/']").count() == 0
    member.goto(f"{url}{KEYS}add/")
    member.fill("[name=name]", "of ada")
    member.select_option("[name=organization]", label="Research")
    member.click("[name=_save]")
    assert member.locator("input[value^='sk-']").count() == 1

    admin = enter(chromium, installation, "grace")
    admin.goto(f"{url}{KEYS}")
    admin.get_by_role("link", name="of ada").click()
    page = admin.url
    admin.get_by_role("button", name="Revoke key").wait_for()
    admin.goto(f"{url}/admin/completions/membership/")
    assert "ada" in admin.locator("#result_list").inner_text()

    stranger = enter(chromium, installation, "eve")
    stranger.goto(f"{url}{KEYS}")
    assert "of ada" not in stranger.locator("body").inner_text()
    stranger.goto(page)
    assert "Rotate secret" not in stranger.locator("body").inner_text()
    assert stranger.request.get(f"{url}/admin/workers/").status == 403

    operator = browser.open_page(chromium)
    browser.log_in(operator, installation)
    operator.goto(f"{url}{KEYS}")
    assert "of ada" in operator.locator("body").inner_text()


def test_a_member_makes_rotates_and_revokes_a_key_within_limits(
    chromium: browser.Browser, installation: ScriptedInstallation
) -> None:
    """The operator lets each member own one key, of two requests a minute."""
    browser.add_member(installation, "kim", "Bounded")
    operator = browser.open_page(chromium)
    browser.log_in(operator, installation)
    operator.goto(f"{installation.url}/admin/completions/organization/?q=Bounded")
    operator.locator("#result_list").get_by_role("link", name="Bounded").first.click()
    operator.get_by_text("Limits of members' keys").first.click()
    operator.fill("[name=keys_per_member]", "1")
    operator.fill("[name=member_requests_per_minute]", "2")
    operator.locator("[name=_save]").click()
    operator.get_by_text("was changed successfully").wait_for()

    member = enter(chromium, installation, "kim")
    first = make_key(member, installation, "of kim")
    assert [ask(installation, first) for _ in range(3)] == [200, 200, 429]
    assert make_key(member, installation, "another") == ""
    assert "lets each member own 1 active" in member.locator("#content").inner_text()

    member.goto(f"{installation.url}{KEYS}")
    member.locator("#result_list").get_by_role("link", name="of kim").first.click()
    page = member.url
    member.locator("[name=grace]").select_option("0")
    member.get_by_role("button", name="Rotate secret").click()
    second = member.input_value("#secret")
    assert second != first
    wait_refused(installation, first)
    assert ask(installation, second) == 429  # a key's limits outlive its secret
    member.goto(page)
    member.on("dialog", lambda dialog: dialog.accept())
    member.get_by_role("button", name="Revoke key").click()
    member.get_by_text("is revoked").first.wait_for()
    wait_refused(installation, second)


def make_key(page: browser.Page, service: ScriptedInstallation, name: str) -> str:
    """The secret that the page shows; empty if the key is refused."""
    page.goto(f"{service.url}{KEYS}add/")
    page.fill("[name=name]", name)
    page.select_option("[name=organization]", label="Bounded")
    page.click("[name=_save]")
    secret = page.locator("#secret")
    return secret.input_value() if secret.count() else ""


def ask(service: ScriptedInstallation, secret: str) -> int:
    """The status of a request of a key."""
    body = {"model": MODEL, "prompt": [9703], "max_tokens": 1}
    with service.http(secret) as client:
        return client.post("/v1/completions", json=body).status_code


def wait_refused(service: ScriptedInstallation, secret: str) -> None:
    """Web processes hear of a change of a key within a second."""
    deadline = time.monotonic() + browser.SLOWLY / 1000
    while ask(service, secret) != 401:
        assert time.monotonic() < deadline
