"""System checks, run as `manage.py check` runs them."""

from pathlib import Path

import pytest
from django.contrib.auth.models import Group
from django.core.checks import CheckMessage, run_checks
from pytest_django.fixtures import Settings

from completions.models import Organization


def found(deployment: bool = False) -> list[CheckMessage]:
    messages = run_checks(include_deployment_checks=deployment)
    return [each for each in messages if str(each.id).startswith("quire.")]


def ids(deployment: bool = False) -> list[str]:
    assert all(message.hint for message in found(deployment))
    return [str(message.id) for message in found(deployment)]


def test_a_good_configuration(settings: Settings, served: None) -> None:
    settings.HTTPS, settings.TRUSTED_PROXIES = True, ["127.0.0.1", "10.0.0.0/8", "::1"]
    assert ids(deployment=True) == []


def test_bad_configurations(settings: Settings, tmp_path: Path) -> None:
    settings.KEY_PEPPER = "short"
    settings.MODELS_FILE = tmp_path / "missing.toml"
    settings.REQUEST_TIMEOUT = 600.0
    assert ids() == ["quire.E001", "quire.E002", "quire.W001"]


def test_unencrypted_traffic_is_warned_of(settings: Settings, served: None) -> None:
    settings.HTTPS = False
    assert ids(deployment=True) == ["quire.W002"]


def test_proxies_that_match_no_address_are_refused(settings: Settings, served: None) -> None:
    settings.TRUSTED_PROXIES = ["*", "10.0.0.0/33", "proxy", "10.0.0.1/8"]
    assert ids() == ["quire.E005"] * 4
    assert "'10.0.0.0/33'" in str(found()[1].msg)
    settings.TRUSTED_PROXIES = ["*"]
    assert ids() == []


def test_a_proxy_that_nobody_trusts_is_warned_of(settings: Settings, served: None) -> None:
    settings.HTTPS, settings.TRUSTED_PROXIES = True, []
    assert ids(deployment=True) == ["quire.W004"]


@pytest.mark.django_db
def test_a_role_that_nobody_made_is_warned_of(settings: Settings, served: None) -> None:
    Group.objects.create(name="Auditor")
    Organization.objects.create(name="Research")
    roles = "a=superuser,b=Operator,c=Viewer,d=Auditor,e=viewer"
    roles += ",f=member:Research,g=admin:Reserch"
    settings.OIDC = {
        **dict.fromkeys(settings.OIDC, ""), "ISSUER": "https://id.example.com",
        "CLIENT_ID": "quire", "CLIENT_SECRET": "s", "ROLES": roles,
    }  # fmt: skip
    assert ids() == ["quire.W003", "quire.W003"]
    assert found()[0].msg == "QUIRE_OIDC_ROLES names no role: 'viewer'."
