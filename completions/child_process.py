"""Child processes that answer lines: for work that holds the interpreter, takes a core for long, or
may have to be killed."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from completions.contract.llguidance_threads import lower_priority

ROOT = Path(__file__).resolve().parents[1]
MAX_QUESTIONS = 200
"""Questions after which a child is replaced, as native code may leak memory."""
_PIPE_BYTES = 65_536


class ChildProcess:
    """One process that reads questions and writes answers, one line each, at a low priority. Used
    by one thread at a time."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._asked = 0
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        lower_priority(self._process.pid)  # before it imports anything

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_new(self) -> bool:
        """Whether it has not been asked anything yet."""
        return not self._asked

    @property
    def is_worn(self) -> bool:
        return self._asked >= MAX_QUESTIONS or self._process.poll() is not None

    @property
    def signal(self) -> int | None:
        """The signal that ended it, after :meth:`close`."""
        return -self._process.returncode if self._process.returncode else None

    def exchange(self, question: bytes, seconds: float) -> bytes:
        """Return the line that answers a line. Raises TimeoutError, and OSError if the child
        ends."""
        self._asked += 1
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        to_child, from_child = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(to_child, False)
        unsent, answer = memoryview(question), bytearray()
        pipes = select.poll()  # select() refuses descriptors from 1024 on: streams have as many
        pipes.register(from_child, select.POLLIN)
        pipes.register(to_child, select.POLLOUT)
        while not answer.endswith(b"\n"):
            left = deadline - time.monotonic()
            ready = {descriptor for descriptor, _ in pipes.poll(max(left, 0) * 1000)}
            if not ready:
                raise TimeoutError
            if to_child in ready:
                unsent = unsent[os.write(to_child, unsent[:_PIPE_BYTES]) :]
                if not unsent:
                    pipes.unregister(to_child)
            if from_child in ready:
                read = os.read(from_child, _PIPE_BYTES)
                if not read:
                    raise OSError("the child has ended")
                answer += read
        return bytes(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _environment() -> dict[str, str]:
    """Return the child's environment, without the service's secrets."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
    passed = {name: os.environ[name] for name in kept if name in os.environ}
    one_thread = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return passed | {"PYTHONPATH": str(ROOT)} | one_thread


Child = TypeVar("Child", bound=ChildProcess)


class IdleChildren(Generic[Child]):
    """Children that wait for questions, at most `most` of them. A question takes one, or starts
    one."""

    def __init__(self, start: Callable[[], Child], most: int) -> None:
        self._start = start
        self._most = most
        self._idle: SimpleQueue[Child] = SimpleQueue()

    @contextmanager
    def borrow(self) -> Iterator[Child]:
        """Yield an idle child, or a new one. It is closed if it is worn, or after an exception: the
        next question could get the answer to this one."""
        child = self._take()
        try:
            yield child
        except BaseException:
            child.close()
            raise
        if child.is_worn or self._idle.qsize() >= self._most:
            child.close()
        else:
            self._idle.put(child)

    def close(self) -> None:
        for child in self._all_idle():
            child.close()

    def _take(self) -> Child:
        for child in self._all_idle():
            if not child.is_worn:
                return child
            child.close()
        return self._start()

    def _all_idle(self) -> Iterator[Child]:
        while True:
            try:
                yield self._idle.get_nowait()
            except Empty:
                return
