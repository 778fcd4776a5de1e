"""Rank 0's side of a group: starts the other ranks as child processes, sends them what to compute,
and notices when one of them ends.

Messages go through a pair of sockets for each follower. The system closes a process's sockets
however it ends, so either side reads an end of file at once.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import cast

import torch

from workers.engine.backends.parallel.group import Ranks
from workers.engine.backends.parallel.rendezvous import Rendezvous
from workers.engine.config import EngineConfig
from workers.engine.core.plan import StepPlan
from workers.engine.exceptions import RankLost

logger = logging.getLogger(__name__)

_FOLLOWER = "workers.engine.follower"
_ROOT = Path(__file__).resolve().parents[4]
_END_SECONDS = 10.0
"""Time for followers to end by themselves; they have nothing to save."""

_WATCH_SECONDS = 1.0
"""How long stopping may wait for the thread that watches."""

GO = b""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a follower needs to know before it loads its part."""

    rank: int
    path: str
    config: EngineConfig
    folder: Path
    """The folder in which the ranks find one another."""


class Followers:
    """The processes of ranks 1 and up. The thread that starts them must outlive them: when that
    thread ends, the system kills them, even if they are stopped."""

    def __init__(self, path: str | Path, config: EngineConfig) -> None:
        self._rendezvous = Rendezvous()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        self._stopping = False
        self._watching: threading.Thread | None = None
        folder = self._rendezvous.path
        device = torch.device(config.device)
        try:
            for rank in range(1, config.tensor_parallel_size):
                self._start(Assignment(rank, str(path), _assign_device(config, rank), folder))
            self.ranks = Ranks.join(
                0, config.tensor_parallel_size, device, folder, config.rank_timeout, self.meet
            )
        except BaseException:
            self.stop()
            raise

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def _start(self, assignment: Assignment) -> None:
        ours, theirs = Pipe()
        with theirs:
            process = _launch(theirs, torch.device(assignment.config.device))
        self._processes.append(process)
        self._pipes.append(ours)
        try:
            ours.send(assignment)
        except OSError as error:
            raise self._loss(assignment.rank) from error

    def meet(self) -> None:
        """Wait until every follower is ready, then let all of them continue. Raises RankLost."""
        for rank in range(1, 1 + len(self._pipes)):
            self._receive(rank)
        self._send(GO)

    def _receive(self, rank: int) -> None:
        """Read that a follower is ready. Raises RankLost."""
        try:
            complaint = self._pipes[rank - 1].recv()
        except (EOFError, OSError) as error:
            raise self._loss(rank) from error
        if complaint is not None:
            raise RankLost(f"rank {rank} cannot continue: {complaint}")

    def find_loss(self, error: BaseException) -> RankLost | None:
        """Return the loss of a follower that caused an error of rank 0, or None. To rank 0 the loss
        may look like a fault of the model, because it sees only a broken connection."""
        if not isinstance(error.__cause__ or error, RuntimeError):
            return None
        for rank, process in enumerate(self._processes, 1):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS / len(self._processes))
                try:
                    while True:  # it may have been ready before
                        self._receive(rank)
                except RankLost as lost:
                    return lost
        return None

    def send(self, plan: StepPlan) -> None:
        """Have every follower compute a step. Raises RankLost."""
        self._send(plan.to_bytes())

    def _send(self, message: bytes) -> None:
        for rank, pipe in enumerate(self._pipes, 1):
            try:
                pipe.send_bytes(message)
            except OSError as error:
                raise self._loss(rank) from error

    def _loss(self, rank: int) -> RankLost:
        process = self._processes[rank - 1]
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        return RankLost(f"rank {rank} (process {process.pid}) {_describe_end(process.returncode)}")

    def watch(self, on_lost: Callable[[RankLost], None]) -> None:
        """Call ``on_lost`` from a thread when a follower ends or fails."""
        self._watching = threading.Thread(
            target=self._watch, args=(on_lost,), name="followers", daemon=True
        )
        self._watching.start()

    def _watch(self, on_lost: Callable[[RankLost], None]) -> None:
        while not self._stopping:
            if ready := wait(self._pipes, timeout=_WATCH_SECONDS):
                try:
                    self._receive(1 + self._pipes.index(cast(Connection, ready[0])))
                except RankLost as lost:
                    if not self._stopping:
                        on_lost(lost)
                return

    def stop(self) -> None:
        """End all followers, whatever they do."""
        self._stopping = True
        if self._watching is not None and self._watching is not threading.current_thread():
            self._watching.join()
        for pipe in self._pipes:
            pipe.close()
        deadline = time.monotonic() + _END_SECONDS
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.warning("killing process %d, which has not ended by itself", process.pid)
                process.kill()
                process.wait()
        Ranks.leave()
        self._rendezvous.remove()


def _launch(pipe: Connection, device: torch.device) -> subprocess.Popen[bytes]:
    """Start a follower that reads its assignment and its steps from ``pipe``."""
    command = [sys.executable, "-m", _FOLLOWER, str(pipe.fileno()), str(os.getpid())]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path[1:]])}
    if device.type == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.Popen(  # noqa: S603 - our own module
        command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[pipe.fileno()]
    )


def _assign_device(config: EngineConfig, rank: int) -> EngineConfig:
    """Return the settings with the rank's own device: the next GPUs after rank 0's."""
    device = torch.device(config.device)
    if device.type == "cpu":
        return config
    return replace(config, device=f"cuda:{(device.index or 0) + rank}")


def _describe_end(code: int | None) -> str:
    if code is None:
        return "closed its connection"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
