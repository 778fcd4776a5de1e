"""Linear layers over weights packed for the C kernels."""

import ctypes
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from workers.engine.cpu.library import load_library

_LANES = 16
_PIECE = 2**25
_GROUP = 64
_LARGEST = 127
_OFFSET = 128
_MULTIPLE = 32
"""Inputs and outputs of a layer that the kernels take are multiples of this, and so is the number
of rows that they may read."""


class _Arena:
    """Memory for weights in large pieces, which numpy asks the system to back with huge pages: with
    small ones, a step that reads every weight once waits for page tables as long as for weights."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """Room of ``size`` bytes, uninitialized; never returned to the arena."""
        if len(self._free) < size:
            raw = np.empty(max(size, _PIECE), dtype=np.uint8)
            with torch.inference_mode(False):  # who takes of it later may be in another mode
                self._free = torch.from_numpy(raw)
        taken, self._free = self._free[:size], self._free[size:]
        return taken


_arena = _Arena()


class LinearStruct(ctypes.Structure):
    """``Linear`` of matmul.h."""

    _fields_ = [
        ("packed", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
    ]


class QuantizedStruct(ctypes.Structure):
    """``Quantized`` of int8.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("values", "steps", "starts")]


class QuantizedRows:
    """Room for ``rows`` rows of at most ``inputs`` activations in 8 bits."""

    def __init__(self, rows: int, inputs: int) -> None:
        groups = -(-inputs // _GROUP)
        self.rows = rows
        # Zeros: what lies beyond the last row of a batch is multiplied too.
        self.values = torch.zeros(rows, inputs, dtype=torch.int8)
        self.steps = torch.zeros(rows, groups)
        self.starts = torch.zeros(rows, groups, dtype=torch.int32)

    @property
    def struct(self) -> QuantizedStruct:
        """Valid as long as this lives."""
        return QuantizedStruct(*(x.data_ptr() for x in (self.values, self.steps, self.starts)))


class TiledLinear(nn.Module):
    """``nn.Linear`` in bfloat16, its weight packed as matmul.h describes."""

    _scales: Tensor | None = None

    def __init__(self, linear: nn.Linear, library: ctypes.CDLL) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._library = library
        self._packed = self._pack(linear.weight.detach())
        self._bias = None if linear.bias is None else linear.bias.detach().float()

    @classmethod
    def pack(cls, linear: nn.Linear) -> Self | None:
        """None where there are no kernels, or none for this shape."""
        library = load_library()
        fits = linear.in_features % _MULTIPLE == 0 and linear.out_features % _MULTIPLE == 0
        return cls(linear, library) if library is not None and fits else None

    def _pack(self, weight: Tensor) -> Tensor:
        return _in_tiles(weight, inputs_beside=2)

    @property
    def struct(self) -> LinearStruct:
        """Valid as long as this layer lives."""
        return LinearStruct(
            self._packed.data_ptr(),
            None if self._scales is None else self._scales.data_ptr(),
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
        room = None if self._scales is None else QuantizedRows(len(padded), self.in_features)
        output = torch.empty(num_rows, self.out_features)
        self._library.quire_linear(
            ctypes.byref(self.struct),
            ctypes.c_void_p(padded.data_ptr()),
            num_rows,
            None if room is None else ctypes.byref(room.struct),
            ctypes.c_void_p(output.data_ptr()),
            torch.get_num_threads(),
        )
        return output.to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)


class Int8Linear(TiledLinear):
    """``nn.Linear`` on bfloat16 activations, both sides of the product rounded to 8 bits: the
    weight by output columns, symmetrically, the activations as int8.h describes."""

    def _pack(self, weight: Tensor) -> Tensor:
        wide = weight.float()
        highest = wide.abs().amax(dim=1)
        self._scales = torch.where(highest > 0, highest / _LARGEST, 1.0)
        rounded = (wide / self._scales[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
        return _in_tiles(rounded.add_(_OFFSET).to(torch.uint8), inputs_beside=4)


def _in_tiles(weight: Tensor, inputs_beside: int) -> Tensor:
    """A copy of ``weight`` as [out / 16][in / n][16][n]."""
    tiles = weight.view(weight.shape[0] // _LANES, _LANES, -1, inputs_beside).transpose(1, 2)
    room = _arena.take(weight.numel() * weight.element_size())
    return room.view(weight.dtype).view(tiles.shape).copy_(tiles)
