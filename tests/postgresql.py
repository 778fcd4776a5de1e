"""A real PostgreSQL, where one answers."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

_URL = os.environ.get("TEST_DATABASE_URL", "postgres://root@127.0.0.1:5432/test")


def connect_or_skip() -> psycopg.Connection[Any]:
    """A connection that commits each statement."""
    try:
        return psycopg.connect(_URL, autocommit=True, connect_timeout=3)
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL at TEST_DATABASE_URL: {error}")


@contextmanager
def new_database(template: str = "template1") -> Iterator[str]:
    """The URL of a database of the caller alone, which begins with the tables of `template`."""
    name = f"quire_{uuid.uuid4().hex[:12]}"
    with connect_or_skip() as server:
        server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield _URL.rpartition("/")[0] + f"/{name}"
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")
