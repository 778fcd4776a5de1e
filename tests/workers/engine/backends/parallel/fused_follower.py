"""A follower that computes on the CPU what it would on a GPU, with the fused kernels as torch
operations. The environment says what fails on it."""

import os
from typing import Any

import torch
from torch import Tensor

from tests.workers.engine.backends.cuda.without_gpu.plain_kernels import PlainKernels
from workers.engine.backends.cuda import attention, fusion, launches
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.cuda.kv_cache import Way
from workers.engine.checkpoints import loader
from workers.engine.follower import main

FAULT = "QUIRE_TEST_FAULT"
KERNEL = "a fused kernel"
ATTENTION = "the decode kernel"


class FusingBackend(CudaBackend):
    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.fuses = True


class SpoilingBackend(CudaBackend):
    """Its preferred kernel computes nonsense."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.ways = [Way.SPLIT, Way.GATHERED]


class FailingKernels(PlainKernels):
    def gate(self, *_: Any) -> Tensor:
        raise RuntimeError("ptxas failed")


def spoil(setattr: Any) -> None:
    """Have rank 0, or this one, prefer a kernel that computes nonsense."""
    setattr(loader, "choose_backend", SpoilingBackend)
    setattr(attention, "takes", lambda *_: True)
    setattr(launches, "split", lambda query, *_: torch.zeros_like(query))


if __name__ == "__main__":
    fault = os.environ.get(FAULT)
    if fault == ATTENTION:
        spoil(setattr)
    else:
        kernels = FailingKernels() if fault == KERNEL else PlainKernels()
        loader.choose_backend = FusingBackend
        fusion.kernels = lambda: kernels
    main()
