from pathlib import Path

from pytest_django.fixtures import Settings

from completions import checks


def ids(settings: Settings) -> list[str]:
    found = [
        *checks.check_pepper(None), *checks.check_models_file(None), *checks.check_timeouts(None),
    ]  # fmt: skip
    assert all(message.hint for message in found)
    return [str(message.id) for message in found]


def test_a_good_configuration(settings: Settings, served: None) -> None:
    assert ids(settings) == []


def test_bad_configurations(settings: Settings, tmp_path: Path) -> None:
    settings.KEY_PEPPER = "short"
    settings.MODELS_FILE = tmp_path / "missing.toml"
    settings.REQUEST_TIMEOUT = 600.0
    assert ids(settings) == ["quire.E001", "quire.E002", "quire.W001"]


def test_the_middleware_that_protects_the_admin_is_asked_for(settings: Settings) -> None:
    assert checks.check_protection(None) == []
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "Csrf" not in name]
    (error,) = checks.check_protection(None)
    assert error.id == "quire.E003"
    assert error.msg == "MIDDLEWARE has no subclass of CsrfViewMiddleware."


def test_the_clear_is_warned_of(settings: Settings) -> None:
    settings.HTTPS = False
    assert [message.id for message in checks.check_https(None)] == ["quire.W002"]
    settings.HTTPS = True
    assert checks.check_https(None) == []
