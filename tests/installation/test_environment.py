"""installation.environment: a folder that works, by uv or by pip, or a reason."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from installation import environment
from tests.installation.wheels import make_wheel

pytestmark = pytest.mark.integration


@dataclass
class Place:
    """A virtual environment, and a folder of wheels that is the only index."""

    folder: Path
    lines: list[str] = field(default_factory=list)
    """The output of the set-up."""

    @property
    def venv(self) -> Path:
        return self.folder / "venv"

    def prepare(self, requirement: str) -> None:
        requirements = self.folder / "requirements.txt"
        requirements.write_text(requirement)
        self.lines.clear()
        environment.prepare(self.venv, requirements, self.lines.append)

    def version(self) -> str:
        """Return the version of the package `tiny` in the environment."""
        command = [self.venv / "bin" / "python", "-c", "import tiny; print(tiny.VERSION)"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("setup")
    for version in ("1.0", "2.0", "3.0"):
        make_wheel(folder / "wheels", "tiny", version)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder / "wheels"))
        yield Place(folder)


@pytest.mark.long
def test_pip_takes_over_where_uv_is_not_in_the_index(place):
    place.prepare("tiny==1.0")
    assert place.version() == "1.0"
    assert place.lines[0].startswith(f"Making {place.venv} with Python 3.")
    assert "pip installs the packages instead" in place.lines[-1]


@pytest.mark.long
def test_an_environment_of_the_right_python_is_kept(place):
    place.prepare("tiny==1.0")
    marker = place.venv / "kept"
    marker.touch()
    place.prepare("tiny==2.0")
    assert place.version() == "2.0"
    assert marker.exists()


@pytest.mark.long
def test_uv_installs_from_where_pip_would(place, monkeypatch):
    """uv comes from the environment of the tests, so that its bootstrap has nothing to fetch."""
    place.prepare("tiny==1.0")
    (place.venv / "bin" / "uv").symlink_to(Path(sys.executable).with_name("uv"))
    ours = Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    monkeypatch.setenv("PYTHONPATH", str(ours))
    place.prepare("tiny==3.0")
    assert place.version() == "3.0"
    assert place.lines == [f"Installing the packages of {place.folder / 'requirements.txt'}\n"]


@pytest.mark.wide
def test_packages_that_are_nowhere_are_a_reason(place):
    with pytest.raises(environment.SetupError, match="pip config list"):
        place.prepare("absent==1.0")
