"""The database in a backup: SQLite as a file, PostgreSQL as what pg_dump writes."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from django.db import connection

from project.backups import BackupError

_VARIABLES = {
    "HOST": "PGHOST",
    "PORT": "PGPORT",
    "USER": "PGUSER",
    "NAME": "PGDATABASE",
    "PASSWORD": "PGPASSWORD",
}
"""Django's settings of a database, under the names of libpq's variables."""


class Database(Protocol):
    """A kind of database, as archives have it."""

    @property
    def member(self) -> str:
        """Its name in an archive."""

    def dump(self, to: Path) -> None:
        """Write a consistent copy, while others write. Raises BackupError."""

    def check(self, dump: Path) -> None:
        """Raise BackupError if a copy cannot be restored."""

    def is_empty(self) -> bool:
        """Whether nothing is lost when it is replaced."""

    def load(self, dump: Path) -> None:
        """Replace the database by a copy. Raises BackupError."""


@dataclass(frozen=True, slots=True)
class SQLite:
    """The file at `path`. `load` expects that no process has it open."""

    path: Path
    member: ClassVar[str] = "quire.sqlite3"

    def dump(self, to: Path) -> None:
        with connection.cursor() as cursor:
            cursor.execute("VACUUM INTO %s", [str(to)])
        to.chmod(0o600)

    def check(self, dump: Path) -> None:
        try:
            with closing(sqlite3.connect(f"file:{dump}?mode=ro", uri=True)) as copy:
                found = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
        except sqlite3.DatabaseError as error:
            raise BackupError(f"the database in the backup cannot be read: {error}") from error
        if found != "ok":
            raise BackupError(f"the database in the backup is damaged: {found}")

    def is_empty(self) -> bool:
        return not self.path.exists()

    def load(self, dump: Path) -> None:
        shutil.move(dump, self.path)  # perhaps to another file system


@dataclass(frozen=True, slots=True)
class PostgreSQL:
    """A database of a server. Its client programs do the work, since they know its formats."""

    settings: Mapping[str, Any]
    """Django's, of this database."""
    member: ClassVar[str] = "quire.dump"

    def dump(self, to: Path) -> None:
        to.touch(0o600)
        self._run("pg_dump", "--format=custom", "--no-owner", f"--file={to}")

    def check(self, dump: Path) -> None:
        self._run("pg_restore", "--list", str(dump))

    def is_empty(self) -> bool:
        return "completions_organization" not in connection.introspection.table_names()

    def load(self, dump: Path) -> None:
        # `pg_restore --clean` drops only what the backup has, which newer tables may refer to.
        content, dropping = dump.with_suffix(".sql"), dump.with_suffix(".drop.sql")
        self._run("pg_restore", "--no-owner", f"--file={content}", str(dump))
        quote = connection.ops.quote_name
        tables = {*connection.introspection.django_table_names(), "django_migrations"}
        drops = (f"DROP TABLE IF EXISTS {quote(table)} CASCADE;\n" for table in sorted(tables))
        dropping.write_text("".join(drops), "utf-8")
        flags = ("--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1")
        self._run("psql", *flags, f"--file={dropping}", f"--file={content}")

    def _run(self, program: str, *arguments: str) -> None:
        # The password in the environment: every user of the host sees the arguments.
        given = {ours: str(self.settings[name]) for name, ours in _VARIABLES.items()}
        environment = {**os.environ, **{name: value for name, value in given.items() if value}}
        command: Sequence[str] = [program, *arguments]
        try:
            subprocess.run(  # noqa: S603 - a fixed program
                command, env=environment, capture_output=True, text=True, check=True
            )
        except FileNotFoundError as error:
            message = f"{program} is not on PATH. Install PostgreSQL's client programs."
            raise BackupError(message) from error
        except subprocess.CalledProcessError as error:
            raise BackupError(f"{program} failed: {error.stderr.strip()}") from error


def choose_database(settings: Mapping[str, Any]) -> Database:
    """Return the database of an installation. Raises BackupError for another kind of server."""
    engine = str(settings["ENGINE"])
    if engine.endswith("sqlite3"):
        return SQLite(Path(settings["NAME"]))
    if engine.endswith("postgresql"):
        return PostgreSQL(settings)
    raise BackupError(f"backups know SQLite and PostgreSQL, not {engine}")
