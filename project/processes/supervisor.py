"""Starts child processes, restarts them with back-off, and stops them in stages."""

import contextlib
import ctypes
import datetime
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn, Self

from project.processes import logs

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMPATIENT_AFTER = 1.0
"""Seconds after which a second stop signal kills the children. Earlier signals are duplicates of
the first: make forwards a signal that the process group has already received."""

PID_FILE_RETRY = 5.0
"""Seconds before another try to write a pid file, for example on a full disk."""

ROTATE_EVERY = 60.0
"""Seconds between two checks of the size of the logs."""

REFUSED = os.EX_CONFIG
"""The exit code of a child that another start would not help: what it is configured to run has to
change first."""

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class AlreadyRunningError(Exception):
    """Another supervisor holds the lock of this QUIRE_HOME."""


class StopRequested(BaseException):
    """A stop signal arrived. Leaving the supervisor's `with` block stops the children."""


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    """Name of the pid file and of the log."""
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to ours."""
    cwd: Path | None = None
    grace: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""
    stage: int = 0
    """Children of one stage stop together, the highest stage first."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before a restart: doubled for each failure in a row, up to `maximum`."""

    first: float = 0.5
    maximum: float = 30.0
    forgiven_after: float = 60.0
    """A child that lived this long has no failures."""

    def compute_delay(self, failures: int) -> float:
        return min(self.first * 2.0 ** min(failures - 1, 32), self.maximum)


@dataclass
class _Child:
    service: Service
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    restart_at: float | None = None
    has_pid_file: bool = False
    is_refused: bool = False


class Supervisor:
    """Locks QUIRE_HOME for one `up`: `with Supervisor(home) as s: s.start(...); s.run()`.

    Runs in the main thread, which must outlive the children: the kernel kills them with the thread
    that started them, so kill -9 of the supervisor leaves no process behind. Inside the `with`
    block, the first stop signal stops the children in stages and a second kills them.
    """

    def __init__(
        self, home: Path, report: Callable[[str], None], backoff: Backoff | None = None
    ) -> None:
        self.run_dir = home / "run"
        self.log_dir = home / "log"
        self._report = report
        self._backoff = backoff or Backoff()
        self._children: dict[str, _Child] = {}
        self._stop_asked_at: float | None = None
        self._impatient = False
        self._restore = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for folder in (self.run_dir, self.log_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            take_lock(stack, self.run_dir / "up.lock")
            self._wakeup = _open_wakeup_pipe(stack)
            for number in (*STOP_SIGNALS, signal.SIGCHLD):
                stack.callback(signal.signal, number, signal.signal(number, self._on_signal))
            self._restore = stack.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        with self._restore:
            self.stop()

    # Children --------------------------------------------------------------------------------

    def start(self, service: Service) -> None:
        """Start a child and restart it whenever it ends."""
        child = self._children[service.name] = _Child(service)
        self._spawn(child)

    def get_pid(self, name: str) -> int | None:
        child = self._children.get(name)
        return child.process.pid if child and child.process else None

    def get_log(self, name: str) -> Path:
        return self.log_dir / f"{name}.log"

    def list_failing(self) -> list[str]:
        """Return the children that failed at least twice in a row, or are not started again."""
        return [
            name for name, child in self._children.items() if child.failures > 1 or child.is_refused
        ]

    def run(self) -> NoReturn:
        """Restart children until a stop signal, then raise StopRequested."""
        while True:
            self._watch(ROTATE_EVERY)
            for child in self._children.values():
                self._rotate(child.service)

    def wait_until(
        self, condition: Callable[[], bool], timeout: float, interval: float = 0.05
    ) -> bool:
        """Wait until `condition` holds. Returns False after `timeout` s. Raises StopRequested."""
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._watch(min(interval, left))
        return True

    def stop(self) -> None:
        """Stop all children in stages, the highest first."""
        if self._children:
            self._report("stopping (a second signal kills)")
        running = [child for child in self._children.values() if child.process is not None]
        for stage in sorted({child.service.stage for child in running}, reverse=True):
            self._end([child for child in running if child.service.stage == stage])
        self._children.clear()

    def _spawn(self, child: _Child) -> None:
        """Start a child that does not run. Raises OSError if none was started: an error after the
        start would leave a process that nobody stops, beside the one started in its place."""
        assert child.process is None
        service = child.service
        child.started_at = time.monotonic()
        self._rotate(service)
        with open(self.get_log(service.name), "ab", buffering=0) as log:
            now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            with contextlib.suppress(OSError):  # a full disk
                log.write(f"--- {now} starting {service.name}\n".encode())
            child.process = subprocess.Popen(  # noqa: S603
                service.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **service.env},
                cwd=service.cwd,
                start_new_session=True,
                preexec_fn=make_death_signal(os.getpid()),
            )
        child.restart_at = None
        child.has_pid_file = False
        if error := self._write_pid_file(child, child.process):
            self._report(f"{service.name} runs as process {child.process.pid}, but {error}")

    def _write_pid_file(self, child: _Child, process: subprocess.Popen[bytes]) -> OSError | None:
        draft = self._get_pid_file(child.service).with_suffix(".draft")
        try:
            draft.write_text(f"{process.pid}\n")
            draft.replace(self._get_pid_file(child.service))  # atomic: no reader finds it empty
        except OSError as error:  # for example a full disk
            return error
        child.has_pid_file = True
        return None

    def _rotate(self, service: Service) -> None:
        try:
            logs.rotate(self.get_log(service.name))
        except OSError as error:  # for example a full disk
            self._report(f"{service.name}.log cannot be rotated: {error}")

    def _get_pid_file(self, service: Service) -> Path:
        return self.run_dir / f"{service.name}.pid"

    # Watching --------------------------------------------------------------------------------

    def _watch(self, timeout: float) -> None:
        """Sleep until a signal, a due restart or the timeout, then do what is due."""
        self._raise_if_asked_to_stop()
        due = [child.restart_at for child in self._children.values() if child.restart_at]
        if any(child.process and not child.has_pid_file for child in self._children.values()):
            due.append(time.monotonic() + PID_FILE_RETRY)
        self._sleep(min([timeout, *(at - time.monotonic() for at in due)]))
        for child in self._children.values():
            if child.process is not None and _has_exited(child.process):
                self._on_death(child, child.process)
            if child.restart_at is not None and child.restart_at <= time.monotonic():
                try:
                    self._spawn(child)
                except OSError as error:  # out of memory or processes
                    self._schedule(child, f"could not be started: {error}")
            elif child.process is not None and not child.has_pid_file:
                self._write_pid_file(child, child.process)
        self._raise_if_asked_to_stop()

    def _raise_if_asked_to_stop(self) -> None:
        if self._stop_asked_at is not None:
            raise StopRequested

    def _sleep(self, timeout: float) -> None:
        if select.select([self._wakeup], [], [], max(0.0, timeout))[0]:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._wakeup, 512):
                    pass

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number not in STOP_SIGNALS:
            return
        now = time.monotonic()
        if self._stop_asked_at is None:
            self._stop_asked_at = now
        elif now - self._stop_asked_at > IMPATIENT_AFTER:
            self._impatient = True

    def _on_death(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        self._reap(child, process)
        lived = time.monotonic() - child.started_at
        if lived > self._backoff.forgiven_after:
            child.failures = 0
        code = process.returncode
        how = f"exited with code {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        if code == REFUSED:
            child.is_refused = True
            name = child.service.name
            self._report(
                f"{name} cannot run as it is configured, and is not started again: "
                f"see {self.get_log(name)}"
            )
            return
        self._schedule(child, f"{how} after {lived:.1f} s")

    def _schedule(self, child: _Child, what: str) -> None:
        child.failures += 1
        delay = self._backoff.compute_delay(child.failures)
        child.restart_at = time.monotonic() + delay
        name = child.service.name
        self._report(f"{name} {what}; starting it again in {delay:g} s (log: {self.get_log(name)})")

    def _end(self, children: Sequence[_Child]) -> None:
        started = time.monotonic()
        pending = [(child, child.process) for child in children if child.process is not None]
        for _, process in pending:
            os.kill(process.pid, signal.SIGTERM)  # Popen.send_signal would reap it
        while pending:
            for child, process in pending:
                if started + child.service.grace <= time.monotonic() or self._impatient:
                    self._kill(child, process)
                if _has_exited(process):
                    self._reap(child, process)
            pending = [(child, process) for child, process in pending if child.process is not None]
            if pending:
                first = min(child.service.grace for child, _ in pending)
                self._sleep(started + first - time.monotonic())

    def _kill(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        if not _has_exited(process):
            self._report(f"{child.service.name} has not stopped yet: killing it")
            os.kill(process.pid, signal.SIGKILL)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    def _reap(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        """Reap an ended child, and kill the processes that it left in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # the zombie still reserves the id
        process.wait()
        child.process = None
        try:
            self._get_pid_file(child.service).unlink(missing_ok=True)
        except OSError as error:  # for example a file system that is read-only by now
            self._report(f"{self._get_pid_file(child.service)} cannot be removed: {error}")


def make_death_signal(parent: int) -> Callable[[], None]:
    """Return a `preexec_fn` that has the kernel kill the child when `parent` ends.

    PR_SET_PDEATHSIG follows the parent's thread, prctl(2). It exists on Linux only.
    """

    def arrange() -> None:
        if sys.platform == "linux":
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:  # the parent ended before the call
                os._exit(1)

    return arrange


def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Check without reaping, so that the process id is not reused before the session is killed."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, flags) is not None


def take_lock(stack: contextlib.ExitStack, path: Path) -> None:
    """Lock the file until the stack unwinds or the process ends."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    stack.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode().strip() or "unknown"
        raise AlreadyRunningError(f"process {holder} already runs it") from None
    os.truncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())


def _open_wakeup_pipe(stack: contextlib.ExitStack) -> int:
    """Return the read end of a pipe that every signal writes to, which wakes select()."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    stack.callback(os.close, reader)
    stack.callback(os.close, writer)
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    stack.callback(signal.set_wakeup_fd, previous)
    return reader
