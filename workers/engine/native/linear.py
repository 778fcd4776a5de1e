"""Linear layers over weights packed for the C kernels."""

import ctypes
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from workers.engine.native.library import load_library

_LANES = 16
_PIECE = 2**24
_MULTIPLE = 32
"""Inputs and outputs of a layer that the kernels take are multiples of this, and so is the number
of rows that they may read."""


class _Arena:
    """Memory for weights in large pieces, which numpy asks the system to back with huge pages: with
    small ones, a step that reads every weight once waits for page tables as long as for weights."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.bfloat16)

    def take(self, size: int) -> Tensor:
        """Room for ``size`` bfloat16 numbers, uninitialized; never returned to the arena."""
        if len(self._free) < size:
            raw = np.empty(2 * max(size, _PIECE), dtype=np.uint8)
            with torch.inference_mode(False):  # who takes of it later may be in another mode
                self._free = torch.from_numpy(raw).view(torch.bfloat16)
        taken, self._free = self._free[:size], self._free[size:]
        return taken


_arena = _Arena()


class LinearStruct(ctypes.Structure):
    """``Linear`` of matmul.h."""

    _fields_ = [
        ("packed", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
    ]


class TiledLinear(nn.Module):
    """``nn.Linear`` in bfloat16, its weight packed as matmul.h describes."""

    def __init__(self, linear: nn.Linear, library: ctypes.CDLL) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._library = library
        weight = linear.weight.detach()
        pairs = weight.view(self.out_features // _LANES, _LANES, self.in_features // 2, 2)
        self._packed = _arena.take(weight.numel()).view(pairs.transpose(1, 2).shape)
        self._packed.copy_(pairs.transpose(1, 2))
        self._bias = None if linear.bias is None else linear.bias.detach().float()

    @classmethod
    def pack(cls, linear: nn.Linear) -> Self | None:
        """None where there are no kernels, or none for this shape."""
        library = load_library()
        fits = linear.in_features % _MULTIPLE == 0 and linear.out_features % _MULTIPLE == 0
        return cls(linear, library) if library is not None and fits else None

    @property
    def struct(self) -> LinearStruct:
        """Valid as long as this layer lives."""
        return LinearStruct(
            self._packed.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            self.in_features,
            self.out_features,
        )

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(-1, self.in_features)
        num_rows = len(rows)
        if num_rows == 0:
            return hidden.new_empty(*hidden.shape[:-1], self.out_features)
        padded = pad(rows, (0, 0, 0, -num_rows % _MULTIPLE)).contiguous()
        output = torch.empty(num_rows, self.out_features)
        self._library.quire_linear(
            ctypes.byref(self.struct),
            ctypes.c_void_p(padded.data_ptr()),
            num_rows,
            ctypes.c_void_p(output.data_ptr()),
            torch.get_num_threads(),
        )
        return output.to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)
