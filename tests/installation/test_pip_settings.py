"""installation.pip_settings: uv looks where pip looks."""

import sys
from pathlib import Path

import pytest

from installation import pip_settings
from installation.pip_settings import read, translate

LISTING = """\
:env:.find-links='/opt/wheels'
global.cert='/etc/ssl/ca.crt'
global.find-links='/elsewhere'
global.index-url='https://index.test/simple'
install.extra-index-url='https://a.test/simple\\nhttps://b.test/simple'
freeze.timeout='10'
"""


def test_the_environment_overrides_the_command_and_that_the_global_section():
    assert read(LISTING) == {
        "cert": "/etc/ssl/ca.crt",
        "find-links": "/opt/wheels",
        "index-url": "https://index.test/simple",
        "extra-index-url": "https://a.test/simple\nhttps://b.test/simple",
    }
    assert read("global.timeout='1'\ninstall.timeout='2'\n") == {"timeout": "2"}
    assert read("") == {}


def test_each_setting_has_a_variable_of_uv():
    found = translate(read(LISTING), {})
    assert found.variables == {
        "SSL_CERT_FILE": "/etc/ssl/ca.crt",
        "UV_FIND_LINKS": "/opt/wheels",
        "UV_DEFAULT_INDEX": "https://index.test/simple",
        "UV_INDEX": "https://a.test/simple https://b.test/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert found.options == ()


def test_several_folders_are_separated_as_uv_wants_them():
    assert translate({"find-links": "/a\n/b"}, {}).variables == {"UV_FIND_LINKS": "/a,/b"}


@pytest.mark.parametrize(("value", "options"), [("true", ("--no-index",)), ("0", ())])
def test_no_index_is_an_option(value, options):
    assert translate({"no-index": value}, {}).options == options


def test_what_the_user_sets_for_uv_stays():
    environ = {"UV_INDEX_URL": "https://own.test/simple", "SSL_CERT_FILE": "/own.crt"}
    found = translate(read(LISTING), environ).variables
    assert found == {"UV_FIND_LINKS": "/opt/wheels", "UV_INDEX_STRATEGY": "unsafe-best-match"}


def test_the_settings_are_those_of_pip_itself(tmp_path, monkeypatch):
    configuration = tmp_path / "pip.conf"
    configuration.write_text("[global]\nindex-url = https://index.test/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    monkeypatch.setenv("PIP_TRUSTED_HOST", "index.test other.test")
    found = pip_settings.load_uv_settings(Path(sys.executable)).variables
    assert found["UV_DEFAULT_INDEX"] == "https://index.test/simple"
    assert found["UV_INSECURE_HOST"] == "index.test other.test"
