"""The process of a rank above 0: computes what rank 0 plans until rank 0 closes the connection."""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import cast

import torch
from transformers.utils import logging as transformers_logging

from workers.engine.backends.base.gpu_memory import hold_turn
from workers.engine.backends.device import make_current
from workers.engine.backends.parallel.followers import Assignment
from workers.engine.backends.parallel.group import Ranks
from workers.engine.checkpoints.loader import load_model
from workers.engine.core.plan import StepPlan
from workers.engine.core.runner import PagedRunner
from workers.engine.exceptions import EngineError
from workers.engine.sampling.filters import draw_from_all

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    descriptor, parent = map(int, sys.argv[1:])
    _die_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 ends its running jobs first
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    show_no_bars: Callable[[], None] = transformers_logging.disable_progress_bar
    show_no_bars()
    pipe = Connection(descriptor)
    code = 0
    try:
        _serve(pipe)
    except (EOFError, ConnectionResetError):
        pass  # rank 0 has stopped or ended
    except (EngineError, ValueError, OSError) as error:  # what this machine or model cannot do
        code = 1
        _report(pipe, str(error))
    except BaseException as error:
        logger.exception("this rank ends")
        code = 1
        _report(pipe, f"{type(error).__name__}: {error}")
    logging.shutdown()
    os._exit(code)  # not waiting for ranks that may be gone


def _die_with(parent: int) -> None:
    """Have the system kill this process when rank 0 ends, even if it hangs in a collective or is
    stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # rank 0 ended before the call
        os._exit(1)


def _report(pipe: Connection, complaint: str) -> None:
    try:
        pipe.send(complaint)
    except OSError:
        logger.warning("rank 0 has ended before it could read: %s", complaint)


@torch.inference_mode()
def _serve(pipe: Connection) -> None:
    given: Assignment = pipe.recv()
    config = given.config
    device = torch.device(config.device)

    def meet() -> None:
        pipe.send(None)
        pipe.recv_bytes()

    make_current(device)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    size, timeout = config.tensor_parallel_size, config.rank_timeout
    ranks = Ranks.join(given.rank, size, device, given.folder, timeout, meet)
    with hold_turn(device):
        loaded = load_model(given.path, config, ranks)
        runner = cast(PagedRunner, loaded.make_runner(loaded, config, draw_from_all))
    meet()
    while True:
        plan = StepPlan.from_bytes(pipe.recv_bytes())
        compute(runner, plan, ranks)


def compute(runner: PagedRunner, plan: StepPlan, ranks: Ranks) -> None:
    """Compute this rank's part of a step."""
    runner.follow(plan.tainted, plan.admitted, plan.grown)
    last_tokens = None
    if plan.batch.ahead:
        last_tokens = torch.empty(len(plan.batch.slots), dtype=torch.int64, device=ranks.device)
        ranks.share(last_tokens)
    runner.forward(runner.lay_out(plan.batch, last_tokens))


if __name__ == "__main__":
    main()
