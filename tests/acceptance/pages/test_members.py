"""A member, an organization's admin, an operator and a stranger in a real browser."""

from collections.abc import Iterator

import pytest

from tests.acceptance.pages import browser
from tests.acceptance.service import ScriptedInstallation

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.long,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium (Debian: chromium)"),
]
SLOWLY = 240_000
KEYS = "/admin/completions/apikey/"
_MAKE = """
from django.contrib.auth.models import User
from completions.accounts import changes, members
from completions.accounts.audit import SERVICE
from completions.models import Membership
for name, role, place in (
    ("ada", "member", "Research"), ("grace", "admin", "Research"), ("eve", "admin", "Elsewhere"),
):
    organization = changes.find_organization(place, SERVICE)
    user = User.objects.create_user(name, password="looks at night")
    members.save(Membership(organization=organization, user=user, role=role), SERVICE)
"""


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedInstallation]:
    with ScriptedInstallation(tmp_path_factory.mktemp("members"), 0.02) as installation:
        installation.manage("shell", "-v0", "-c", _MAKE)
        yield installation


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    with browser.chromium() as chromium:
        yield chromium


def enter(chromium: browser.Browser, service: ScriptedInstallation, user: str) -> browser.Page:
    page = chromium.new_context().new_page()
    page.set_default_timeout(SLOWLY)
    page.goto(f"{service.url}/admin/")
    page.fill("[name=username]", user)
    page.fill("[name=password]", "looks at night")
    page.click("button[type=submit]")
    page.wait_for_url(f"{service.url}/admin/usage/")
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

    operator = chromium.new_page()
    operator.set_default_timeout(SLOWLY)
    browser.log_in(operator, installation)
    operator.goto(f"{url}{KEYS}")
    assert "of ada" in operator.locator("body").inner_text()
