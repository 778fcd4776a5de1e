"""The memory of a GPU: how much of it weights and the KV cache may take."""

import fcntl
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import torch

from workers.engine.exceptions import TooLarge

logger = logging.getLogger(__name__)


def refuse_too_large(needed: int, what: str, device: torch.device) -> None:
    """Raises TooLarge if ``needed`` bytes are not free on a GPU."""
    free, total = torch.cuda.mem_get_info(device)
    if needed > free:
        raise TooLarge(
            f"{what} take {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} of the "
            f"{total / 2**30:.1f} GiB of {device} ({torch.cuda.get_device_name(device)}) are free: "
            "use a GPU with more memory, a smaller model, or device cpu"
        )


def _open_lock(path: Path) -> IO[str]:
    """Return a lock file that workers of several users share.

    The kernel lets nobody create or write another user's file in a sticky folder such as /tmp
    (``fs.protected_regular``), but flock needs only a descriptor to read from.
    """
    try:
        lock = path.open("x")
    except FileExistsError:
        return path.open()
    with suppress(OSError):  # where files have no modes
        os.fchmod(lock.fileno(), 0o644)
    return lock


@contextmanager
def hold_turn(device: torch.device) -> Iterator[None]:
    """Let one process of this host at a time load a model onto a GPU and measure what is left: two
    at once would both count the same memory as free."""
    if device.type != "cuda":
        yield
        return
    name = torch.cuda.get_device_properties(device).uuid
    with ExitStack() as stack:
        path = Path(tempfile.gettempdir()) / f"quire-gpu-{name}.lock"
        try:
            lock = stack.enter_context(_open_lock(path))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting until another worker has loaded its model onto %s", device)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            logger.warning("other workers may load onto %s at the same time: %s", device, error)
        yield


def kv_cache_budget(device: torch.device, utilization: float, profile: Callable[[], object]) -> int:
    """Return bytes for the KV cache on a GPU that already holds the weights.

    ``profile`` runs the largest possible step; its peak stays free.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    profile()
    torch.cuda.synchronize(device)
    step_peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return what_remains(free, total, step_peak, utilization)


def what_remains(free: int, total: int, step_peak: int, utilization: float) -> int:
    """``utilization`` of ``total`` bytes, minus the bytes in use (weights and other processes) and
    the peak of a step. The rest of ``total`` is for fragmentation and graphs."""
    return int(total * utilization) - (total - free) - step_peak
