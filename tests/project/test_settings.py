"""Settings from the environment, each time in a process of its own."""

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from kombu import Connection
from redis.exceptions import ConnectionError

from completions.jobs.connection import connect
from project.celeryconfig import make_broker_url
from tests.acceptance.service import ROOT

Read = Callable[..., dict[str, str]]

_READER = """
import json, os, sys, traceback
import celery.app, celery.signals, celery.worker, django.core.exceptions, django.http
import environ, psutil, redis.asyncio, structlog
for line in sys.stdin:
    environment, mask, names = json.loads(line)
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    found = failure = None
    os.umask(mask)
    os.environ.clear()
    os.environ.update(environment)
    try:
        from project import settings
        found = {name: str(getattr(settings, name)) for name in names}
    except BaseException:
        failure = traceback.format_exc()
    print(json.dumps([found, failure]), flush=True)
    os._exit(0)
"""
"""Forks for each line of its input, so that the libraries are imported once. A line has the
environment, the umask and the names of settings, as JSON."""


@pytest.fixture(scope="module")
def read() -> Iterator[Read]:
    """Return the named settings in a process with an environment."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
    with subprocess.Popen(
        [sys.executable, "-c", _READER],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None

        def read(home, *names, **environment):
            os.umask(mask := os.umask(0))
            whole = {**inherited, "QUIRE_HOME": str(home), **environment}
            print(json.dumps([whole, mask, names]), file=reader.stdin, flush=True)
            found, failure = json.loads(reader.stdout.readline())
            if failure:
                raise ValueError(failure)
            return found

        yield read


def test_folders_are_readable_by_their_own_user_only(read, tmp_path):
    """Whatever the umask says, and wherever an administrator made the folder."""
    before = os.umask(0)
    try:
        home = tmp_path / "new" / "home"
        read(home, "DATABASES")
        (tmp_path / "given").mkdir(mode=0o755)
        read(tmp_path / "given", "DATABASES")
    finally:
        os.umask(before)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    for folder in (home, tmp_path / "given"):
        assert stat.S_IMODE((folder / "tmp").stat().st_mode) == 0o700


def test_the_embedded_default_touches_nothing_outside_its_home(read, tmp_path):
    found = read(tmp_path, "REDIS_URL", "DATABASES", "SECRET_KEY", "KEY_PEPPER")
    assert found["REDIS_URL"] == f"unix://{tmp_path}/run/valkey.sock?db=0"
    assert f"{tmp_path}/quire.sqlite3" in found["DATABASES"]
    assert "IMMEDIATE" in found["DATABASES"]
    secrets = tmp_path / "secrets.json"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    again = read(tmp_path, "SECRET_KEY", "KEY_PEPPER")
    assert again == {name: found[name] for name in again}
    assert again["SECRET_KEY"] != again["KEY_PEPPER"]


def test_a_home_may_have_any_name(read, tmp_path):
    """Some characters mean something in the URLs of its servers."""
    home = tmp_path / "a b?c#d%41é"
    found = read(home, "REDIS_URL", "DATABASES")
    assert f"{home}/quire.sqlite3" in found["DATABASES"]
    opened = connect(found["REDIS_URL"]).connection_pool.connection_kwargs
    assert (opened["path"], opened["db"]) == (f"{home}/run/valkey.sock", 0)
    with pytest.raises(ConnectionError, match=re.escape(f"{home}/run/valkey.sock")):
        Connection(make_broker_url(found["REDIS_URL"])).connect()


def test_a_deep_home_gets_a_short_socket_of_its_own(read, tmp_path):
    one, other = (tmp_path / (name * 100) for name in "ab")
    sockets = [read(home, "VALKEY_SOCKET")["VALKEY_SOCKET"] for home in (one, other)]
    assert all(len(path) < 100 for path in sockets)
    assert sockets[0] != sockets[1]


def test_servers_that_are_given_are_used(read, tmp_path):
    found = read(
        tmp_path,
        "REDIS_URL",
        "VALKEY_SOCKET",
        "DATABASES",
        REDIS_URL="redis://r:1/2",
        DATABASE_URL="postgres://u:p@h:5/d",
    )
    assert (found["REDIS_URL"], found["VALKEY_SOCKET"]) == ("redis://r:1/2", "None")
    assert "postgresql" in found["DATABASES"]
    assert "pool" in found["DATABASES"]


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("QUIRE_DEVICE", "tpu", "use auto, cpu"),
        ("QUIRE_DTYPE", "int3", "use bfloat16"),
        ("QUIRE_TENSOR_PARALLEL_SIZE", "0", "use a number from 1 on"),
        ("QUIRE_MAX_BODY_BYTES", "8MB", "use a whole number"),
        ("QUIRE_REQUEST_TIMEOUT", "soon", "use a number"),
        ("QUIRE_STEP_MS", "0", "use a number of at least 1"),
        ("QUIRE_STEP_MS", "nan", "use a number"),
        ("QUIRE_STEP_MS", "80ms", "use a number"),
        ("QUIRE_REQUEST_TIMEOUT", "300s", "use a number"),
        ("QUIRE_HTTPS", "maybe", "use true or false"),
        ("QUIRE_STORAGE_OPTIONS", "{", "use JSON"),
        ("QUIRE_CORS_ORIGINS", "https://a.example/", "use origins such as https://app.example.com"),
        ("QUIRE_CORS_ORIGINS", "a.example", "use origins such as https://app.example.com"),
        ("QUIRE_LOG_LEVEL", "loud", "use DEBUG, INFO, WARNING, ERROR or CRITICAL"),
    ],
)
def test_a_bad_value_is_named(read, tmp_path, name, value, remedy):
    with pytest.raises(ValueError, match=f"ImproperlyConfigured: {name} is '{value}'; {remedy}"):
        read(tmp_path, "DEVICE", **{name: value})


def test_origins_are_read_as_browsers_write_them(read, tmp_path):
    given = "https://A.example.com, http://[::1]:3000,tauri://localhost"
    found = read(tmp_path, "CORS_ORIGINS", QUIRE_CORS_ORIGINS=given)["CORS_ORIGINS"]
    assert found == "['https://a.example.com', 'http://[::1]:3000', 'tauri://localhost']"
    for nothing in ({}, {"QUIRE_CORS_ORIGINS": ""}):
        assert read(tmp_path, "CORS_ORIGINS", **nothing) == {"CORS_ORIGINS": "[]"}


def test_what_cannot_be_a_database_is_named_without_its_password(read, tmp_path):
    with pytest.raises(ValueError, match="ImproperlyConfigured: DATABASE_URL names no") as refusal:
        read(tmp_path, "DATABASES", DATABASE_URL="pass-word")
    assert "pass-word" not in str(refusal.value)


@pytest.mark.parametrize(
    "url", ["pass-word", "localhost:6379", "http://pass-word@h:1", "redis://h:pass-word"]
)
def test_what_cannot_be_redis_is_named_without_its_password(read, tmp_path, url):
    with pytest.raises(ValueError, match="ImproperlyConfigured: REDIS_URL names no") as refusal:
        read(tmp_path, "REDIS_URL", REDIS_URL=url)
    assert "pass-word" not in str(refusal.value)


def test_a_home_that_cannot_be_made_is_named(read, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"ImproperlyConfigured: QUIRE_HOME is .*/file/home'; "):
        read(tmp_path / "file" / "home", "DEVICE")


@pytest.mark.parametrize(
    "name",
    [
        "CELERY_BROKER_URL",
        "CELERY_BROKER_READ_URL",
        "CELERY_BROKER_WRITE_URL",
        "CELERY_RESULT_BACKEND",
    ],
)
def test_a_variable_that_redirects_celery_is_refused(read, tmp_path, name):
    """The web tier would go on to REDIS_URL, and every job would wait for ever."""
    with pytest.raises(ValueError, match=f"ImproperlyConfigured: {name} is set: .*; unset it"):
        read(tmp_path, "DEVICE", **{name: "redis://elsewhere:1/0"})


def test_a_broker_that_is_the_same_server_is_accepted(read, tmp_path):
    url = "redis://r:1/2"
    same = {"CELERY_BROKER_URL": url, "CELERY_BROKER_READ_URL": ""}
    read(tmp_path, "REDIS_URL", REDIS_URL=url, CELERY_LOADER="mine.Loader", **same)


@pytest.mark.parametrize(("value", "expected"), [("", "False"), ("on", "True"), ("No", "False")])
def test_a_switch_may_have_several_names(read, tmp_path, value, expected):
    assert read(tmp_path, "HTTPS", QUIRE_HTTPS=value) == {"HTTPS": expected}


def test_an_unknown_format_of_logs_is_refused_at_start(read, tmp_path):
    with pytest.raises(ValueError, match="QUIRE_LOG_FORMAT is 'xml'; use auto, json or console"):
        read(tmp_path, "LOG_FORMAT", QUIRE_LOG_FORMAT="xml")
