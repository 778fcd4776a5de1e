"""A running contender: a process that answers one job at a time."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import Answer, Job

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Contender:
    """A module of ``benchmarks.peers``, the interpreter that has what it needs, and the
    model it loads."""

    name: str
    module: str
    python: str
    model: Path
    options: tuple[str, ...] = ()
    """Passed to the module after the model."""


class Process:
    """A contender that has loaded its model."""

    def __init__(self, contender: Contender, process: "subprocess.Popen[str]", log: Path) -> None:
        self.name = contender.name
        self._process = process
        self._log = log
        self.pid = process.pid
        self.about: dict[str, Any] = self._read()

    def run(self, job: Job) -> Answer:
        """Raises ContenderError if the process ends."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        return Answer(**self._read())

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ContenderError(self.name, self._log.read_text(errors="replace")[-2000:])
        answer: dict[str, Any] = json.loads(line)
        return answer


class ContenderError(Exception):
    def __init__(self, name: str, log: str) -> None:
        super().__init__(f"{name} ended:\n{log}")


@contextmanager
def running(contender: Contender) -> Iterator[Process]:
    """Start a contender and wait until it has loaded its model. Raises ContenderError."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as stderr:
            arguments = [str(contender.model), *contender.options]
            command = [contender.python, "-m", contender.module, *arguments]
            environment = {**os.environ, "PYTHONPATH": str(_ROOT), "HF_HUB_OFFLINE": "1"}
            with subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
            ) as process:
                try:
                    yield Process(contender, process, log)
                finally:
                    process.terminate()
