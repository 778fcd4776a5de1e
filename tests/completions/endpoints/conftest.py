"""A database for code that runs in several threads: in that of pytest-django, they would share a
connection."""

import os
import subprocess
import sys
from contextlib import nullcontext

import pytest

from tests.acceptance.service import ROOT
from tests.postgresql import new_database

_MAIN = "import runpy, sys, django; django.setup(); runpy.run_module(sys.argv[1], None, '__main__')"


@pytest.fixture(params=["sqlite", "postgresql"])
def run_apart(request, tmp_path):
    """Run a module with an empty database; returns the words that it prints.

    On SQLite any transaction that writes is alone; on PostgreSQL it takes a lock.
    """
    on_sqlite = request.param == "sqlite"
    database = nullcontext(f"sqlite:///{tmp_path}/db.sqlite3") if on_sqlite else new_database()
    with database as url:
        home = {"QUIRE_HOME": str(tmp_path), "DJANGO_SETTINGS_MODULE": "project.settings"}

        def run(module: str, package: str = "endpoints") -> list[str]:
            return subprocess.run(
                [sys.executable, "-c", _MAIN, f"tests.completions.{package}.{module}"],
                cwd=ROOT,
                env={**os.environ, **home, "DATABASE_URL": url},
                stdout=subprocess.PIPE,
                text=True,
                timeout=300,
                check=True,
            ).stdout.split()

        yield run
