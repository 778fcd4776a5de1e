"""installation.pins: a pin without a wheel for one of the Pythons is found on any machine."""

import pytest

from installation import pins
from tests.installation.wheels import make_wheel


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of wheels that is the only index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "constraints.txt").touch()
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def resolve(folder, version: str, wanted: str) -> list[str]:
    requirements = folder.parent / "requirements.txt"
    requirements.write_text(wanted)
    return pins.resolve(version, requirements, folder.parent / "constraints.txt")


def test_a_wheel_for_one_python_does_not_serve_another(folder):
    make_wheel(folder, "tiny", "1.0", "cp311-cp311-linux_x86_64")
    assert resolve(folder, "3.11", "tiny==1.0") == ["tiny==1.0"]
    with pytest.raises(ValueError, match=r"tiny==1\.0 has no wheels with a matching Python"):
        resolve(folder, "3.14", "tiny==1.0")


def test_markers_choose_by_the_python_asked_for(folder):
    make_wheel(folder, "tiny", "1.0")
    make_wheel(folder, "tiny", "2.0")
    wanted = "tiny==1.0; python_version < '3.14'\ntiny==2.0; python_version >= '3.14'\n"
    assert resolve(folder, "3.13", wanted) == ["tiny==1.0"]
    assert resolve(folder, "3.14", wanted) == ["tiny==2.0"]


def test_an_unreachable_index_does_not_fail_the_pins(folder, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(pins.UnreachableError):
        resolve(folder, "3.11", "absent==1.0")


def test_a_package_without_a_pin_is_named(tmp_path):
    (tmp_path / "requirements.txt").write_text("# why\nSome_Package[extra]==1.0\n")
    (tmp_path / "constraints.txt").write_text("other==2.0\n")
    resolved = ["some-package==1.0", "other==2.0", "third==3.0", "nvidia-cublas==13.1"]
    assert pins.list_unpinned(resolved, tmp_path.glob("*.txt")) == ["third==3.0"]


def test_the_versions_are_those_of_the_project_file(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nrequires-python = ">=3.11,<3.15"\n')
    assert pins.list_supported(tmp_path / "pyproject.toml") == ["3.11", "3.12", "3.13", "3.14"]
