"""Copies numbers to the device without waiting for it."""

from collections.abc import Sequence as Rows

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def to_device(arrays: Rows[Ints], device: torch.device) -> list[Tensor]:
    """Copy 64-bit arrays to the device, all at once and without waiting for it.

    The staging memory is pinned and comes from torch's allocator, which does not reuse it before
    the copy has run.
    """
    staged = torch.empty(
        sum(array.size for array in arrays), dtype=torch.int64, pin_memory=device.type == "cuda"
    )
    np.concatenate([array.ravel() for array in arrays], out=staged.numpy())
    moved = staged.to(device, non_blocking=True)
    parts = torch.split(moved, [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def floats_to_device(numbers: Floats, device: torch.device) -> Tensor:
    """Return the same for one array of float64."""
    return to_device([numbers.view(np.int64)], device)[0].view(torch.float64)


def wait_for(device: torch.device) -> None:
    """Wait until the device has run what this thread launched."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
