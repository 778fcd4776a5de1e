"""QUIRE_OIDC_... settings: what is right, and what `manage.py check` says about the rest."""

from pathlib import Path

import pytest
from django.core.checks import CheckMessage, run_checks
from pytest_django.fixtures import Settings

from completions.sign_in import configuration

pytest.importorskip("authlib", reason="requirements-oidc.txt is not installed")
from tests.completions.sign_in.conftest import OFF

RIGHT = OFF | {
    "ISSUER": "https://id.example.com/realms/a",
    "CLIENT_ID": "quire",
    "CLIENT_SECRET": "$secret",
    "ROLES": "cn=admins=superuser, readers=Viewer,readers=Auditor",
}


def faults() -> list[CheckMessage]:
    return [each for each in run_checks() if each.id == "quire.E004"]


def test_nothing_is_configured(settings: Settings, served: None):
    settings.OIDC = OFF
    assert configuration.load_configuration() is None
    assert faults() == []


@pytest.mark.django_db
def test_a_right_configuration(settings: Settings, served: None):
    settings.OIDC = RIGHT
    made = configuration.load_configuration()
    assert made is not None
    assert faults() == []
    assert (made.name, made.scopes, made.groups_claim) == (
        "id.example.com",
        "openid profile email",
        "groups",
    )
    assert made.list_roles(["readers", "x"]) == {"Viewer", "Auditor"}
    assert made.list_roles(["cn=admins"]) == {"superuser"}
    assert made.list_roles([]) == frozenset()
    assert "$secret" not in repr(made)


def test_a_secret_in_a_file(settings: Settings, served: None, tmp_path: Path):
    file = tmp_path / "secret"
    file.write_text("from a file\n")
    settings.OIDC = RIGHT | {"CLIENT_SECRET": "", "CLIENT_SECRET_FILE": str(file)}
    made = configuration.load_configuration()
    assert made is not None
    assert made.client_secret == "from a file"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ISSUER": ""}, "QUIRE_OIDC_ISSUER is not set."),
        ({"ISSUER": "http://id.example.com"}, "neither HTTPS nor on this machine"),
        ({"ISSUER": "ftp://id.example.com"}, "neither HTTPS nor on this machine"),
        ({"ISSUER": "https://id.example.com?a=b"}, "no query and no fragment"),
        ({"ISSUER": "https://[a"}, "neither HTTPS nor on this machine"),
        ({"CLIENT_ID": ""}, "QUIRE_OIDC_CLIENT_ID is not set."),
        ({"CLIENT_SECRET": ""}, "The client secret for OpenID Connect is empty."),
        ({"CLIENT_SECRET_FILE": "/a/file"}, "are both set"),
        ({"CLIENT_SECRET": "", "CLIENT_SECRET_FILE": "/no/file"}, "cannot be read"),
        ({"ROLES": ""}, "QUIRE_OIDC_ROLES is not set."),
        ({"ROLES": "admins"}, "'admins', which is not GROUP=ROLE"),
        ({"ROLES": "admins="}, "'admins=', which is not GROUP=ROLE"),
        ({"SCOPES": "email"}, "without openid"),
    ],
)
def test_wrong_configurations(
    settings: Settings, served: None, change: dict[str, str], message: str
):
    settings.OIDC = RIGHT | change
    (fault,) = faults()
    assert message in fault.msg
    assert fault.hint


def test_the_packages_are_missing(
    settings: Settings, served: None, monkeypatch: pytest.MonkeyPatch
):
    settings.OIDC = RIGHT
    monkeypatch.setattr(configuration, "find_spec", lambda name: None)
    (fault,) = faults()
    assert "authlib is missing" in fault.msg
    assert fault.hint == "pip install -r requirements-oidc.txt"
