"""Earlier versions from the history of this repository, and the homes that they left."""

import io
import json
import lzma
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from project.backups.archive import extract_all
from tests.acceptance.service import ROOT

HOMES = Path(__file__).parent / "homes"
SCRIPTED_WORKERS = {"0.1.0": "benchmarks.scripted_worker"}
"""The module of the scripted worker in versions that have it elsewhere."""
COMMITS = {"0.1.0": "222eff77050252bfb4c1fa05fece99b1a21b0b1f"}
"""The last commit of each version; a stored home has its version's name."""


class MissingHistoryError(Exception):
    """The commit of a version is not in this clone."""


def check_out(version: str, folder: Path) -> Path:
    """Write the source of a version into ``folder``. Raises MissingHistoryError."""
    packed = subprocess.run(
        ["git", "archive", COMMITS[version]], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode:
        raise MissingHistoryError(f"{version} is not in this clone; `git fetch --unshallow`")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        extract_all(archive, folder)
    return folder


def check_out_or_skip(version: str, folder: Path) -> Path:
    """The same for a test."""
    try:
        return check_out(version, folder)
    except MissingHistoryError as error:
        pytest.skip(str(error))


@dataclass(frozen=True, slots=True)
class StoredHome:
    """A home as its version left it when its processes were killed."""

    folder: Path
    """QUIRE_HOME: the SQLite file, the files, the secrets and Valkey's append-only file."""
    sql: str
    """The database once more, as statements for PostgreSQL."""
    facts: dict[str, Any]
    """What `store_home.py` noted about it."""


def pack(folder: Path, sql: str, facts: dict[str, Any], path: Path) -> None:
    """Write an archive without names, owners and times of the machine that made it."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    texts = {"facts.json": json.dumps(facts, indent=1), "postgresql.sql": sql}
    with tarfile.open(path, "w:xz", preset=lzma.PRESET_EXTREME | 9) as archive:
        archive.add(folder, "home", filter=anonymous)
        for name, text in texts.items():
            member = anonymous(tarfile.TarInfo(name))
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def unpack(version: str, folder: Path) -> StoredHome:
    with tarfile.open(HOMES / f"{version}.tar.xz") as archive:
        extract_all(archive, folder)
    facts = json.loads((folder / "facts.json").read_text("utf-8"))
    return StoredHome(folder / "home", (folder / "postgresql.sql").read_text("utf-8"), facts)


def keep_state(home: Path, folder: Path) -> None:
    """Copy of a home whose processes have ended what the next version needs."""
    folder.mkdir()
    for name in ("quire.sqlite3", "secrets.json"):
        shutil.copy(home / name, folder / name)
    shutil.copytree(home / "files", folder / "files")
    shutil.copytree(home / "valkey" / "appendonlydir", folder / "valkey" / "appendonlydir")
