"""Grammar masks to the GPU: packed bits travel, and are unpacked there."""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def forbidden_tokens(bits: NDArray[np.int32], device: torch.device) -> Tensor:
    """What ``bits`` [rows, words] do not allow, [rows, 32 * words] of bool on the device.

    Returns before the copy has run. The memory it is staged in is pinned and comes from torch's
    allocator, which gives it out again only afterwards: the masks of the next step are staged
    elsewhere, as if in the other of two buffers.
    """
    staged = torch.from_numpy(bits.view(np.uint8))
    if device.type == "cuda":
        staged = staged.pin_memory()
    moved = staged.to(device, non_blocking=True)
    return _unset_bits(device).index_select(0, moved.flatten().int()).view(len(bits), -1)


@cache
def _unset_bits(device: torch.device) -> Tensor:
    """Of each byte value [256, 8], whether its bits, lowest first, are 0."""
    values = torch.arange(256, device=device)[:, None]
    return (values >> torch.arange(8, device=device)) % 2 == 0
