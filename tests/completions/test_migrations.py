"""Databases of all earlier versions get the tables of this one."""

import shutil
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import environ
import pytest
from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import CreateModel
from django.db.migrations.recorder import MigrationRecorder
from pytest_django import DjangoDbBlocker

from completions.management.commands.migrate import record_replaced
from tests.postgresql import new_database
from tests.representatives import stand_for_all
from tests.upgrades.earlier import COMMITS, unpack
from tests.upgrades.restore import load_postgresql

SQUASHED = ("completions", "0001_tables")
REPLACED = MigrationLoader(None).replacements[SQUASHED].replaces
LAST_REPLACED = REPLACED[-1]
VERSION_0_1_0 = ("completions", "0001_initial")


@contextmanager
def new_url(vendor: str) -> Iterator[str]:
    """The URL of a new database."""
    if vendor == "postgresql":
        with new_database() as url:
            yield url
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/quire.sqlite3"


@pytest.fixture(scope="module", params=stand_for_all(["sqlite"], ["sqlite", "postgresql"]))
def vendor(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def new_tables(vendor: str, django_db_blocker: DjangoDbBlocker) -> dict[str, Any]:
    """The tables of a new database."""
    with new_url(vendor) as url, connect(url, django_db_blocker) as new:
        migrate(new)
        return read_tables(new)


@pytest.fixture
def url(vendor: str) -> Iterator[str]:
    with new_url(vendor) as url:
        yield url


@contextmanager
def connect(url: str, blocker: DjangoDbBlocker) -> Iterator[BaseDatabaseWrapper]:
    alias = uuid.uuid4().hex
    config = environ.Env.db_url_config(url)
    connections.databases[alias] = connections.configure_settings({"default": config})["default"]
    with blocker.unblock():
        try:
            yield connections[alias]
        finally:
            connections[alias].close()
            del connections[alias], connections.databases[alias]


def migrate(connection: BaseDatabaseWrapper) -> list[str]:
    """Migrate to this version. Returns the names of the migrations of `completions` that ran."""
    record_replaced(connection)
    executor = MigrationExecutor(connection)
    executor.loader.check_consistent_history(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    executor.migrate(executor.loader.graph.leaf_nodes(), plan)
    again = MigrationExecutor(connection)
    assert again.migration_plan(again.loader.graph.leaf_nodes()) == []
    return [step.name for step, _ in plan if step.app_label == "completions"]


def migrate_to(connection: BaseDatabaseWrapper, name: tuple[str, str]) -> None:
    """Migrate a new database as far as a version had it that did not know what replaced `name`."""
    executor = MigrationExecutor(connection)
    executor.loader = MigrationLoader(connection, replace_migrations=False)
    executor.migrate([name])


def read_tables(connection: BaseDatabaseWrapper) -> dict[str, Any]:
    """Columns and constraints by table. The order of columns depends on the way to a table."""
    introspection = connection.introspection
    with connection.cursor() as cursor:
        return {
            table: (
                sorted(
                    (tuple(each) for each in introspection.get_table_description(cursor, table)),
                    key=lambda column: str(column[0]),
                ),
                sorted(
                    ("" if name.startswith("__unnamed") else name, sorted(map(str, about.items())))
                    for name, about in introspection.get_constraints(cursor, table).items()
                ),
            )
            for table in introspection.table_names(cursor)
        }


@pytest.mark.long  # a stored database goes the same way
@pytest.mark.parametrize("start", [VERSION_0_1_0, LAST_REPLACED], ids=lambda name: name[1])
def test_an_older_database_gets_the_tables_of_a_new_one(
    url: str, start: tuple[str, str], new_tables: dict[str, Any], django_db_blocker: DjangoDbBlocker
) -> None:
    """The first release, and main before its migrations were replaced by one."""
    with connect(url, django_db_blocker) as old:
        migrate_to(old, start)
        assert SQUASHED[1] not in migrate(old)
        tables = read_tables(old)
        assert set(MigrationRecorder(old).applied_migrations()) >= {SQUASHED, *REPLACED}
    assert tables == new_tables


@pytest.mark.wide
@pytest.mark.parametrize("version", COMMITS)
def test_a_stored_database_gets_the_tables_of_a_new_one(
    version: str,
    url: str,
    vendor: str,
    new_tables: dict[str, Any],
    tmp_path: Path,
    django_db_blocker: DjangoDbBlocker,
) -> None:
    """One that its version made, whatever has become of that version's migrations since."""
    stored = unpack(version, tmp_path)
    if vendor == "postgresql":
        load_postgresql(url, stored.sql, timedelta())
    else:
        shutil.copy(stored.folder / "quire.sqlite3", url.removeprefix("sqlite:///"))
    with connect(url, django_db_blocker) as old:
        assert migrate(old)
        tables = read_tables(old)
    assert tables == new_tables


@pytest.mark.wide
def test_a_database_that_recorded_only_the_replacing_migration(
    url: str, new_tables: dict[str, Any], django_db_blocker: DjangoDbBlocker
) -> None:
    """Main between 0.1.0 and the next version: the migration replaced none then."""
    with connect(url, django_db_blocker) as old:
        migrate(old)
        records = MigrationRecorder(old).migration_qs
        records.filter(app="completions", name__in=[name for _, name in REPLACED]).delete()
        with old.cursor() as cursor:
            cursor.execute("INSERT INTO completions_organization (name, store_prompts, created_at)"
                           " VALUES ('kept', false, '2026-11-25 00:00:00')")  # fmt: skip
        assert migrate(old) == []
        tables = read_tables(old)
        assert set(MigrationRecorder(old).applied_migrations()) >= {SQUASHED, *REPLACED}
        with old.cursor() as cursor:
            cursor.execute("SELECT name FROM completions_organization")
            assert cursor.fetchall() == [("kept",)]
    assert tables == new_tables


@pytest.mark.long
def test_hourly_sums_stay_exact_on_the_way_back(
    url: str, django_db_blocker: DjangoDbBlocker
) -> None:
    """The older table has one row where this one has a row for each kind and batch."""
    with connect(url, django_db_blocker) as new:
        migrate(new)
        apps = MigrationLoader(new).project_state().apps
        owner = apps.get_model("completions", "Organization")(name="kept")
        owner.save(using=new.alias)
        key = apps.get_model("completions", "ApiKey")(organization=owner, name="k", digest="d")
        key.save(using=new.alias)
        common = {
            "organization": owner, "api_key": key, "model": "m", "latency_3": 1,
            "hour": datetime(2026, 11, 20, tzinfo=UTC),
        }  # fmt: skip
        for number, kind in enumerate(("sync", "stream", "batch")):
            row = apps.get_model("completions", "UsageHour")(kind=kind, requests=number, **common)
            row.save(using=new.alias)
        MigrationExecutor(new).migrate([("completions", "0014_words_of_webhooks")])
        with new.cursor() as cursor:
            cursor.execute("SELECT requests, latency_3 FROM completions_usagehour")
            assert cursor.fetchall() == [(3, 3)]


@pytest.mark.integration
@pytest.mark.long
def test_the_command_records_what_a_recorded_migration_replaces(tmp_path: Path) -> None:
    def run() -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", "migrate"],
            cwd=settings.BASE_DIR,
            env={"QUIRE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run()
    with sqlite3.connect(tmp_path / "quire.sqlite3") as database:
        database.executemany("DELETE FROM django_migrations WHERE app = ? AND name = ?", REPLACED)
    database.close()
    assert "No migrations to apply" in run()


def test_each_table_is_created_in_one_operation() -> None:
    """A table that is created and then changed is copied on SQLite, and harder to read."""
    operations = MigrationLoader(None).get_migration(*SQUASHED).operations
    assert [each for each in operations if not isinstance(each, CreateModel)] == []
