"""The folder of a group: none is left, and none is taken from a group that uses it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from workers.engine.backends.parallel.rendezvous import Rendezvous

ROOT = Path(__file__).resolve().parents[5]
KILLED = """
import os, signal
from workers.engine.backends.parallel.rendezvous import Rendezvous
rendezvous = Rendezvous()
(rendezvous.path / "ranks").write_text("met")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_group_is_removed_by_the_next_one(folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", KILLED],
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
            "TMPDIR": str(folder),
        },
    )
    [abandoned] = folder.iterdir()
    rendezvous = Rendezvous()
    assert list(folder.iterdir()) == [rendezvous.path]
    assert rendezvous.path != abandoned
    rendezvous.remove()
    assert not list(folder.iterdir())


def test_a_running_group_keeps_its_folder() -> None:
    first = Rendezvous()
    second = Rendezvous()
    assert first.path.is_dir()
    first.remove()
    assert second.path.is_dir()
    second.remove()


def test_other_folders_stay(folder: Path) -> None:
    other = folder / "quire-ranks-of-something-else"
    other.mkdir()
    Rendezvous().remove()
    assert other.is_dir()
