"""The command line as a process."""

import os
import subprocess
import sys

import pytest

from tests.acceptance.service import ROOT


@pytest.mark.integration
def test_a_closed_pipe_is_not_an_error():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "manage.py", "help"],
            cwd=ROOT,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.integration
def test_an_interrupt_is_no_traceback():
    program = (
        "import runpy, sys, os, signal; sys.argv = ['manage.py', 'help']\n"
        # A shell lets what runs in its background ignore the signal.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from django.core import management\n"
        "management.execute_from_command_line = lambda _: os.kill(os.getpid(), signal.SIGINT)\n"
        "runpy.run_path('manage.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_an_engine_worker_loads_no_django_application():
    """The applications take a second in which the model could load."""
    program = (
        "import runpy, sys; sys.argv = ['manage.py', 'engine_worker', '--help']\n"
        "try: runpy.run_path('manage.py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "from django.apps import apps; from project.celery import make_engine_app\n"
        "app = make_engine_app(); app.conf.imports = ['workers.tasks']\n"
        "app.loader.import_default_modules()\n"  # where Celery's fixup would set Django up
        "print(apps.ready, 'rest_framework' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.represented_by("up")
@pytest.mark.parametrize("command", ["up", "engine_worker", "check"])
def test_a_wrong_setting_is_a_message_without_a_traceback(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "manage.py", command],
        cwd=ROOT,
        env={**os.environ, "QUIRE_HOME": str(tmp_path), "QUIRE_RESULT_TTL": "10m"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "QUIRE_RESULT_TTL is '10m'; use a whole number\n"


def _create_key(**environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return subprocess.run(
        [sys.executable, "manage.py", "create_api_key", "a"],
        cwd=ROOT,
        env={**kept, "DJANGO_SETTINGS_MODULE": "project.settings", **environment},
        capture_output=True,
        text=True,
    )


def test_a_database_without_tables_is_a_message_without_a_traceback(tmp_path):
    done = _create_key(QUIRE_HOME=str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("The database lacks migrations (no such table: completions_org")
    assert "Run `python manage.py migrate`, or start" in done.stderr


def test_an_unreachable_database_is_a_message_without_a_traceback(tmp_path):
    url = "postgresql://nobody@127.0.0.1:1/none"
    done = _create_key(QUIRE_HOME=str(tmp_path), DATABASE_URL=url)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("The database cannot be used: ")
    assert "Traceback" not in done.stderr
