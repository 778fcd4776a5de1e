"""Restores a stored home as if its processes had been killed a moment ago.

Deadlines, leases and the ages at which old rows are deleted would otherwise be about the day when
the home was stored.
"""

import sqlite3
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
import redis

from completions.jobs.connection import connect
from project.processes import valkey
from tests.running import PATIENCE

_JOB_TIMES = ("created", "deadline", "started", "first", "finished")


def whole_hours_since(stored_at: float) -> timedelta:
    """Rows of hourly usage stay rows of hours."""
    return timedelta(hours=(time.time() - stored_at) // 3600)


def move_sqlite(path: Path, by: timedelta) -> None:
    """Move all times in a database of Quire."""
    with sqlite3.connect(path) as database:
        database.create_function("later", 1, lambda text: text and _later(text, by))
        columns = database.execute(
            "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c"
            " WHERE m.type = 'table' AND m.name LIKE 'completions_%' AND c.type = 'datetime'"
        ).fetchall()
        assert columns
        for table, column in columns:
            database.execute(f"UPDATE {table} SET {column} = later({column})")  # noqa: S608
    database.close()


def _later(text: str, by: timedelta) -> str:
    return (datetime.fromisoformat(text) + by).isoformat(" ")


def load_postgresql(url: str, sql: str, by: timedelta) -> None:
    """Fill a new database, and move its times."""
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(sql.encode())
        columns = database.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_name"
            " LIKE 'completions_%' AND data_type = 'timestamp with time zone'"
        ).fetchall()
        assert columns
        for table, column in columns:
            update = f"UPDATE public.{table} SET {column} = {column} + %s"  # noqa: S608
            database.execute(update.encode(), (by,))


def move_redis(home: Path, by: timedelta, prefix: str = "quire:") -> None:
    """Move the times of jobs in the append-only file of a home."""
    socket = home / "valkey" / "move.sock"
    service = valkey.make_service(home / "valkey", socket)
    server = subprocess.Popen(service.command, cwd=service.cwd, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while not valkey.is_answering(socket):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with connect(f"unix://{socket}") as client:
            _move_jobs(client, by.total_seconds(), prefix)
    finally:
        server.terminate()
        server.wait()
    socket.unlink(missing_ok=True)


def _move_jobs(client: redis.Redis, seconds: float, prefix: str) -> None:
    for key in client.scan_iter(f"{prefix}job:*", count=1000):
        times = client.hmget(key, _JOB_TIMES)
        moved = _moved(dict(zip(_JOB_TIMES, times, strict=True)), seconds)
        client.hset(key, mapping=moved)
    for job_id, due in client.zrange(f"{prefix}open", 0, -1, withscores=True):
        client.zadd(f"{prefix}open", {job_id: due + seconds})
    for entry_id, fields in client.xrange(f"{prefix}usage"):
        named = {name.decode(): value for name, value in fields.items()}
        client.xadd(f"{prefix}usage", {**named, **_moved(named, seconds)})
        client.xdel(f"{prefix}usage", entry_id)


def _moved(fields: dict[str, bytes | None], seconds: float) -> dict[str, float]:
    times = ((name, fields.get(name)) for name in _JOB_TIMES)
    return {name: float(value) + seconds for name, value in times if value}
