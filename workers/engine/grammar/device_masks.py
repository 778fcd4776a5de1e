"""Copies grammar masks to the GPU as packed bits and unpacks them there."""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def forbidden_tokens(bits: NDArray[np.int32], device: torch.device) -> Tensor:
    """Return the tokens that ``bits`` [rows, words] forbid: bool [rows, 32 * words] on the device.

    Returns before the copy has run. The staging memory is pinned and comes from torch's allocator,
    which reuses it only after the copy, so the masks of the next step get other memory.
    """
    staged = torch.from_numpy(bits.view(np.uint8))
    if device.type == "cuda":
        staged = staged.pin_memory()
    moved = staged.to(device, non_blocking=True)
    return _unset_bits(device).index_select(0, moved.flatten().int()).view(len(bits), -1)


@cache
def _unset_bits(device: torch.device) -> Tensor:
    """For each byte value, whether each of its bits, lowest first, is 0: bool [256, 8]."""
    values = torch.arange(256, device=device)[:, None]
    return (values >> torch.arange(8, device=device)) % 2 == 0
