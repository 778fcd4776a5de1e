"""Sign-in with a real OpenID Connect provider, in a real browser."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.acceptance.pages import browser, oidc_provider
from tests.acceptance.pages.oidc_provider import Provider
from tests.acceptance.service import ScriptedInstallation

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.long,
    pytest.mark.skipif(
        find_spec("oidc_provider_mock") is None, reason="requirements-dev.txt is not installed"
    ),
]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with oidc_provider.running(tmp_path_factory.mktemp("provider")) as provider:
        yield provider


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory, provider: Provider
) -> Iterator[ScriptedInstallation]:
    home = tmp_path_factory.mktemp("signing-in")
    secret = home / "oidc-secret"
    secret.write_text("known to both")
    with ScriptedInstallation(
        home,
        0.02,
        QUIRE_OIDC_ISSUER=provider.url,
        QUIRE_OIDC_CLIENT_ID="quire",
        QUIRE_OIDC_CLIENT_SECRET_FILE=str(secret),
        QUIRE_OIDC_NAME="Acme",
        QUIRE_OIDC_ROLES="staff=Viewer,platform=superuser",
    ) as installation:
        yield installation


@pytest.fixture
def page(chromium: browser.Browser) -> Iterator[browser.Page]:
    with chromium.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(browser.SLOWLY)
        yield page


def authorize(page: browser.Page, url: str, subject: str) -> None:
    """From the login page to the provider, and back."""
    page.goto(url)
    page.get_by_role("button", name="Sign in with Acme").click()
    page.get_by_placeholder("sub").fill(subject)
    page.get_by_role("button", name="Authorize").click()


def test_a_viewer_enters_by_the_provider_and_leaves(
    page: browser.Page, installation: ScriptedInstallation, provider: Provider
):
    provider.put("ada", name="Ada", email="ada@example.org", groups=["staff", "others"])
    authorize(page, f"{installation.url}/admin/workers/", "ada")
    page.wait_for_url(f"{installation.url}/admin/workers/")
    assert "Ada" in page.locator("body").inner_text()
    assert page.request.get(f"{installation.url}/admin/auth/user/").status == 403
    page.evaluate("document.getElementById('logout-form').submit()")
    page.wait_for_url(f"{provider.url}/**")
    page.get_by_role("button").first.click()
    page.wait_for_url(f"{installation.url}/admin/login/**")
    page.goto(f"{installation.url}/admin/workers/")
    assert "/admin/login/" in page.url


def test_an_owner_loses_the_role_with_the_group(
    page: browser.Page, installation: ScriptedInstallation, provider: Provider
):
    provider.put("grace", name="Grace", groups=["platform"])
    authorize(page, f"{installation.url}/admin/auth/user/", "grace")
    page.wait_for_url(f"{installation.url}/admin/auth/user/")
    provider.put("grace", name="Grace", groups=[])
    page.set_viewport_size(browser.PHONE)
    page.context.clear_cookies()
    authorize(page, f"{installation.url}/admin/", "grace")
    page.get_by_text("None of your groups has a role here.").wait_for()
    assert browser.find_overflow(page) == []
    page.get_by_role("link", name="Back to the login page").click()
    page.wait_for_url(f"{installation.url}/admin/login/")
    browser.log_in(page, installation)
    page.goto(f"{installation.url}/admin/completions/auditentry/?action=refused")
    assert "grace" in page.locator("#result_list tbody tr").first.inner_text()


def test_the_provider_denies(page: browser.Page, installation: ScriptedInstallation):
    page.goto(f"{installation.url}/admin/")
    page.get_by_role("button", name="Sign in with Acme").click()
    page.get_by_role("button", name="Deny").click()
    page.get_by_text("This sign-in could not be verified.").wait_for()


def test_without_the_provider_passwords_work(
    page: browser.Page, installation: ScriptedInstallation, provider: Provider
):
    """The last test of this file: it ends the provider."""
    provider.stop()
    installation.kill("web")
    installation.wait_ready()
    page.goto(f"{installation.url}/admin/")
    page.get_by_role("button", name="Sign in with Acme").click()
    page.get_by_text("The sign-in provider does not answer as it should.").wait_for()
    browser.log_in(page, installation)
    assert "cannot be read" in installation.logs()
