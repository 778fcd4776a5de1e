"""A PostgreSQL server under a test's own hand."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from tests.acceptance.service import free_port


class PrivatePostgres:
    """A PostgreSQL of this test alone; it refuses to run as root."""

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """Skips the test where none is installed."""
        if not shutil.which("initdb") or not shutil.which("pg_ctl"):
            pytest.skip("no PostgreSQL server is installed")
        server = cls()
        try:
            yield server
        finally:
            server.stop()

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="quire-pg-"))
        self.port = free_port()
        self.url = f"postgres://quire@127.0.0.1:{self.port}/postgres"
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user:
            shutil.chown(self.folder, self._user)
        self._run("initdb", "--username=quire", "--auth=trust", "--no-sync")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c fsync=off"
        self._start = ("pg_ctl", "--wait", f"--log={self.folder}/log", f"--options={options}")
        self._run(*self._start, "start")

    def _run(self, command: str, *options: str) -> None:
        subprocess.run(
            [shutil.which(command) or command, f"--pgdata={self.folder}/data", *options],
            user=self._user, check=True, cwd=self.folder, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def restart(self) -> None:
        """As a crash would: connections are cut, the log is replayed."""
        self._run(*self._start, "--mode=immediate", "restart")

    def stop(self) -> None:
        self._run("pg_ctl", "--wait", "--mode=immediate", "stop")
        shutil.rmtree(self.folder)
