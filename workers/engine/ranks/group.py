"""The group of processes that compute one model, as one of them sees it."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

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
            store=FileStore(str(folder / "ranks"), size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
            device_id=device if on_gpu else None,
        )
        return cls(rank, size, device, meet)

    def smallest(self, number: int) -> int:
        """Return the smallest of the ranks' numbers."""
        numbers = torch.tensor([number], dtype=torch.int64, device=self.device)
        dist.all_reduce(numbers, dist.ReduceOp.MIN)
        return int(numbers)

    def share(self, tensor: Tensor) -> None:
        """Overwrite ``tensor`` with that of rank 0."""
        dist.broadcast(tensor, 0)

    @staticmethod
    def leave() -> None:
        """Forget the group, whose other ranks have ended."""
        if dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:
            dist.destroy_process_group()  # NCCL would wait for the others
