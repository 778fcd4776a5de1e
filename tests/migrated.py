"""Databases with all tables: migrated once for a whole run of tests, then copied."""

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from tests.postgresql import new_database

ROOT = Path(__file__).resolve().parent.parent
_FILE = "quire.sqlite3"
_TEMPLATE = "template"
"""The file that names PostgreSQL's database, from which others are copied."""

_kept: tuple[Path, ExitStack] | None = None
"""The folder that all processes of the run share, and what this process removes at its end."""


@contextmanager
def share(folder: Path) -> Iterator[None]:
    """Let this process copy what any process of the run has migrated in `folder`."""
    global _kept
    with ExitStack() as stack:
        _kept = folder, stack
        try:
            yield
        finally:
            _kept = None


def copy_to(home: Path) -> None:
    """Give a new home a SQLite file with all tables. Outside a run of tests, `up` makes them."""
    if _kept is not None and not (home / _FILE).exists():
        shutil.copyfile(_migrate_file(_kept[0]), home / _FILE)


@contextmanager
def fill_memory(uri: str) -> Iterator[None]:
    """Give a SQLite database in memory all tables. It lasts while it has a connection."""
    assert _kept is not None
    with closing(sqlite3.connect(uri, uri=True)) as memory:
        with closing(sqlite3.connect(_migrate_file(_kept[0]))) as stored:
            stored.backup(memory)
        yield


@contextmanager
def new_postgresql() -> Iterator[str]:
    """The URL of a database of the caller alone, with all tables."""
    assert _kept is not None
    with ExitStack() as stack:
        with _lock(_kept[0]):
            url = stack.enter_context(new_database(template=_migrate_template(*_kept)))
        yield url


def _migrate_file(folder: Path) -> Path:
    path = folder / _FILE
    with _lock(folder):
        if not path.exists():
            home = folder / "migrated"
            _migrate(home)
            (home / _FILE).rename(path)
    return path


def _migrate_template(folder: Path, stack: ExitStack) -> str:
    """Return the name of the database to copy, which lasts until the process that made it ends."""
    path = folder / _TEMPLATE
    if not path.exists():
        url = stack.enter_context(new_database())
        _migrate(folder / "migrated", DATABASE_URL=url)
        path.write_text(url.rpartition("/")[2])
        stack.callback(_forget_template, folder)
    return path.read_text()


def _forget_template(folder: Path) -> None:
    with _lock(folder):
        (folder / _TEMPLATE).unlink()


def _migrate(home: Path, **environment: str) -> None:
    home.mkdir(exist_ok=True)
    ours = ("DATABASE_URL", "DJANGO_SETTINGS_MODULE")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity=0"],
        cwd=ROOT,
        env={**inherited, "QUIRE_HOME": str(home), **environment},
        check=True,
    )


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with (folder / "migrating").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing the file releases it
        yield
