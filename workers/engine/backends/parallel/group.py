"""The group of processes that compute one model, as one of them sees it."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from workers.engine.backends.parallel.alone import Alone

T = TypeVar("T")

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
"""All ranks are on one host, so none of them has to listen on a network."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """A rank's place in its group, and what the group does together. Every rank must make the same
    calls in the same order; a call that waits longer than the group's timeout raises RuntimeError
    or, on a GPU, ends the process."""

    rank: int
    size: int
    device: torch.device
    meet: Callable[[], None]
    """Wait, without a time limit, until every rank has made this call."""

    @classmethod
    def join(
        cls,
        rank: int,
        size: int,
        device: torch.device,
        folder: Path,
        timeout: float,
        meet: Callable[[], None],
    ) -> "Ranks":
        """Wait for the other ranks and connect to them. They find one another through a file
        in ``folder``."""
        os.environ["LOCAL_RANK"] = str(device.index or 0)  # transformers chooses the device by it
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", LOOPBACK)
        on_gpu = device.type == "cuda"
        meet()
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=dist.FileStore(str(folder / "ranks"), size),  # type: ignore[attr-defined]
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
            device_id=device if on_gpu else None,
        )
        return cls(rank, size, device, meet)

    def smallest(self, number: int) -> int:
        """Return the smallest of the ranks' numbers."""
        return min(self._gather(number))

    def largest(self, number: float) -> float:
        """Return the largest of the ranks' numbers."""
        return max(self._gather(number))

    def complaint(self, own: str | None) -> str | None:
        """Return what the first rank that complains says, or None."""
        for rank, complaint in enumerate(self._gather(own)):
            if complaint is not None:
                return f"rank {rank}: {complaint}"
        return None

    def try_alone(self, attempt: Callable[[], object]) -> str | None:
        """Make an attempt on every rank by itself, for which sums and exchanges are skipped: its
        result is wrong. Return why it fails, here or on another rank, or None. Raises
        torch.OutOfMemoryError on all ranks if one of them lacks memory."""
        own = lack = None
        try:
            with Alone():  # type: ignore[no-untyped-call]
                attempt()
        except torch.OutOfMemoryError as failure:
            lack = str(failure)
        except Exception as failure:  # noqa: BLE001 - the ranks decide
            own = repr(failure)
        if (complaint := self.complaint(lack)) is not None:
            raise torch.OutOfMemoryError(complaint)
        return self.complaint(own)

    def do_together(self, attempt: Callable[[], T]) -> T:
        """Make an attempt on every rank. Raises RuntimeError on all ranks if it fails on one. An
        attempt that waits for the others must not fail before they have its part."""
        result, own, failure = None, None, None
        try:
            result = attempt()
        except Exception as error:  # noqa: BLE001 - the ranks decide
            own, failure = repr(error), error
        if (complaint := self.complaint(own)) is not None:
            raise RuntimeError(complaint) from failure
        return cast(T, result)

    def _gather(self, own: T) -> list[T]:
        """Return what each rank gives. It goes through main memory, without waiting for a GPU."""
        gathered = [own] * self.size
        dist.all_gather_object(gathered, own)
        return gathered

    def share(self, tensor: Tensor) -> None:
        """Overwrite ``tensor`` with that of rank 0."""
        dist.broadcast(tensor, 0)

    @staticmethod
    def leave() -> None:
        """Forget the group, whose other ranks have ended."""
        if dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:
            dist.destroy_process_group()  # NCCL would wait for the others
