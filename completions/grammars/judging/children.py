"""Child processes that judge costly constraints. A constraint may kill its child."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue

from completions.contract.llguidance_threads import step_back
from completions.grammars.exceptions import GrammarError, GrammarOverloadError, GrammarTimeoutError
from completions.grammars.judging.examination import Question, Verdict
from completions.grammars.limits import Limits

ROOT = Path(__file__).resolve().parents[3]
CHILD = "completions.grammars.judging.child"
MAX_QUESTIONS = 200
"""Questions after which a child is replaced, as native code may leak memory."""
START_SECONDS = 60.0
"""Added to the time for a child's first question: it starts and reads the model's tokens."""


def too_slow(limits: Limits) -> GrammarTimeoutError:
    return GrammarTimeoutError(
        f"checking it took longer than {limits.seconds:g} seconds; send a simpler one"
    )


def too_busy() -> GrammarOverloadError:
    return GrammarOverloadError("too many grammars are being checked; retry later")


class Child:
    """One child process. Used by one thread at a time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._asked = 0
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", CHILD, json.dumps(asdict(limits))],
            cwd=ROOT, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        step_back(self._process.pid)  # before it imports anything

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_worn(self) -> bool:
        return self._asked >= MAX_QUESTIONS or self._process.poll() is not None

    def ask(self, question: Question) -> Verdict:
        """The verdict on a question; errors are in it. Afterwards the child may be dead."""
        seconds = self._limits.patience + (START_SECONDS if not self._asked else 0)
        self._asked += 1
        line = json.dumps(question.to_json()).encode() + b"\n"
        error: GrammarError
        try:
            return Verdict.from_json(json.loads(self._exchange(line, seconds)))
        except TimeoutError:
            error = too_busy()
        except (OSError, ValueError):  # it died or its answer was cut off
            error = GrammarError(
                "too complex to check: it takes too much memory or stack; send a simpler one"
            )
        self.close()
        if self._process.returncode == -signal.SIGPROF:
            error = too_slow(self._limits)
        error.field = question.constraint.named
        return Verdict(error=error)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _exchange(self, line: bytes, seconds: float) -> bytes:
        """Write a line and read one. Raises TimeoutError and OSError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        to_child, from_child = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(to_child, False)
        answer = bytearray()
        while not answer.endswith(b"\n"):
            left = deadline - time.monotonic()
            readable, writable, _ = select.select(
                [from_child], [to_child] if line else [], [], max(left, 0)
            )
            if not readable and not writable:
                raise TimeoutError
            if writable:
                line = line[os.write(to_child, line[:65_536]) :]
            if readable:
                read = os.read(from_child, 65_536)
                if not read:
                    raise OSError("the child has ended")
                answer += read
        return bytes(answer)


def _environment() -> dict[str, str]:
    """The child's environment, without the service's secrets."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
    passed = {name: os.environ[name] for name in kept if name in os.environ}
    return passed | {"PYTHONPATH": str(ROOT), "RAYON_NUM_THREADS": "1"}


class Children:
    """The idle children. A question takes one, or starts one."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._idle: SimpleQueue[Child] = SimpleQueue()

    def ask(self, question: Question) -> Verdict:
        with self.borrowed() as child:
            return child.ask(question)

    @contextmanager
    def borrowed(self) -> Iterator[Child]:
        """An idle child, or a new one. Worn ones are closed."""
        child = self._take()
        try:
            yield child
        finally:
            if child.is_worn:
                child.close()
            else:
                self._idle.put(child)

    def _take(self) -> Child:
        while not self._idle.empty():
            with suppress(Empty):
                child = self._idle.get_nowait()
                if not child.is_worn:
                    return child
                child.close()
        return Child(self._limits)

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get_nowait().close()
