"""The one migration, on a database that already has tables of the same names."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import CreateModel, RunPython


def migrate(home: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "manage.py", "migrate"],
        cwd=settings.BASE_DIR,
        env={"QUIRE_HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )


@pytest.mark.integration
def test_the_tables_of_an_earlier_version_are_refused(tmp_path: Path) -> None:
    """It recorded `0001_initial`, so a first migration of that name would be skipped."""
    database = sqlite3.connect(tmp_path / "quire.sqlite3")
    database.execute("create table completions_apikey (id integer primary key)")
    database.execute("create table django_migrations (id integer primary key, app, name, applied)")
    database.execute(
        "insert into django_migrations (app, name, applied)"
        " values ('completions', '0001_initial', '2026-11-21 00:00:00')"
    )
    database.commit()
    refused = migrate(tmp_path)
    assert refused.returncode == 1
    assert "cannot be upgraded. Use a new database" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.integration
@pytest.mark.long
def test_migrating_twice_changes_nothing(tmp_path: Path) -> None:
    assert migrate(tmp_path).returncode == 0
    assert "No migrations to apply" in migrate(tmp_path).stdout


def test_each_table_is_created_in_one_operation() -> None:
    """A table that is created and then changed is copied on SQLite, and harder to read."""
    operations = MigrationLoader(None).get_migration("completions", "0001_tables").operations
    changing = [each for each in operations if not isinstance(each, CreateModel | RunPython)]
    assert changing == []
