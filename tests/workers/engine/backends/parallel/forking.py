"""Processes that are forked from one that has imported torch: an import in each would take longer
than what the tests compute."""

import os
import runpy
import subprocess
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext

import torch

from workers.engine.backends.parallel import followers

_PRELOADED = (
    "tests.workers.engine.backends.parallel.fused_follower",
    "tests.workers.engine.backends.parallel.gpu_follower",
    "tests.workers.engine.backends.parallel.pair",
    "transformers.models.llama.modeling_llama",
    "transformers.integrations.tensor_parallel",
)


def make_context() -> ForkServerContext:
    """Make the context of processes that have the imports of followers and of their tests."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


class ForkedFollower:
    """A follower as :class:`subprocess.Popen` shows it."""

    def __init__(self, pipe: Connection, _device: torch.device) -> None:
        self._process = make_context().Process(
            target=_follow, args=(followers._FOLLOWER, pipe, dict(os.environ)), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("a follower", timeout)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _follow(module: str, pipe: Connection, environment: dict[str, str]) -> None:
    """Run a follower's module as its own process would. Its parent is the server of forks."""
    os.environ.update(environment)
    sys.argv = [module, str(pipe.fileno()), str(os.getppid())]
    runpy.run_module(module, run_name="__main__")
