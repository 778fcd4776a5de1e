"""Linear layers over weights packed for the C kernels."""

import ctypes
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from workers.engine.backends.base.linear import LinearLayer
from workers.engine.backends.cpu.layers.library import load_library

_LANES = 16
_PIECE = 2**25
_GROUP = 64
_LARGEST = 127
_LARGEST_NIBBLE = 15
_LARGEST_BYTE = 255
_MINIMUM_STEP = 16
_PIECE_BYTES = 4 * _LANES + _GROUP * _LANES // 2
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Shares of a group's range to try: a narrower range rounds most weights less and the outermost
more."""

_NO_ERROR = 0.02
"""A relative error that scales and minima of 8 bits explain: no other range needs a trial."""
_NEAR = 0.2
"""How far 4-bit weights may lie off their grid after rounding to bfloat16, in steps of the grid."""
_MOST_GAPS = 24
"""Gaps narrower than a group's width divided by this come from rounding, not from a 4-bit grid."""
_ALIKE = 1.4
"""How much wider than the narrowest gap another gap of as many steps may appear."""

_SAMPLED = 16

_ROUNDED_AT_ONCE = 1024
_READ_AFTER = 512
"""How far products may read past a weight, to multiply that by zeros: 16 columns of 32 inputs."""

_MULTIPLE = 32
"""The kernels take layers whose inputs and outputs are multiples of this, and may read the rows
of a batch up to a multiple of it. An output layer is padded to one."""


class _Arena:
    """Memory for weights in large pieces, which numpy asks the system to back with huge pages: with
    small ones, a step that reads every weight once waits for page tables as long as for weights."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """Room of ``size`` bytes, uninitialized; never returned to the arena."""
        if len(self._free) < size:
            raw = np.empty(max(size, _PIECE), dtype=np.uint8)
            with torch.inference_mode(False):  # later users may be in another mode
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
        ("bits", ctypes.c_int32),
    ]


class PreparedStruct(ctypes.Structure):
    """``Prepared`` of matmul.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("values", "steps", "starts")]


class PreparedRows:
    """Room for ``rows`` rows of at most ``inputs`` activations in the form that products take."""

    def __init__(self, rows: int, inputs: int) -> None:
        groups = -(-inputs // _GROUP)
        self.rows = rows
        # Zeros: the padding beyond the last row of a batch is multiplied too.
        self.values = torch.zeros(rows, inputs)  # the widest of its forms
        self.steps = torch.zeros(rows, groups)
        self.starts = torch.zeros(rows, groups, dtype=torch.int32)
        pointers = (x.data_ptr() for x in (self.values, self.steps, self.starts))
        self.struct = PreparedStruct(*pointers)
        """Valid as long as this object lives."""


class TiledLinear(LinearLayer):
    """``nn.Linear`` in bfloat16, its weight packed as matmul.h describes."""

    bits = 16
    _scales: Tensor | None = None

    def __init__(self, linear: nn.Linear, library: ctypes.CDLL) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._library = library
        missing = -linear.out_features % _MULTIPLE
        self._outputs = linear.out_features + missing
        weight = linear.weight.detach()
        self._packed = self._pack(pad(weight, (0, 0, 0, missing)) if missing else weight)
        self.weight = linear.weight.detach().to("meta")
        """Only for models that ask for the type of a layer's weight."""
        self._bias = (
            None if linear.bias is None else pad(linear.bias.detach().float(), (0, missing))
        )

    @classmethod
    def pack(cls, linear: nn.Linear, is_head: bool = False) -> Self | None:
        """None where there are no kernels, or none for this shape. An output layer may have any
        number of outputs: vocabularies do."""
        library = load_library()
        fits = linear.in_features % _MULTIPLE == 0
        fits &= is_head or linear.out_features % _MULTIPLE == 0
        return cls(linear, library) if library is not None and fits else None

    def _pack(self, weight: Tensor) -> Tensor:
        return _lay_out_tiles(weight)

    @property
    def prepares_rows(self) -> bool:
        """Whether products with this weight need :class:`PreparedRows`."""
        return self._scales is not None or bool(self._library.quire_prepares())

    @property
    def struct(self) -> LinearStruct:
        """Valid as long as this layer lives."""
        return LinearStruct(
            self._packed.data_ptr(),
            None if self._scales is None else self._scales.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            self.in_features,
            self.out_features,
            self.bits,
        )

    def columns(self, begin: int, end: int) -> LinearStruct:
        """Return the structure for the outputs ``[begin, end)`` alone, both multiples of 16."""
        struct = self.struct
        block = self._packed.numel() * self._packed.element_size() * _LANES // self._outputs
        struct.packed += begin // _LANES * block
        if struct.scales:
            struct.scales += 4 * begin
        if struct.bias:
            struct.bias += 4 * begin
        struct.outputs = end - begin
        return struct

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(-1, self.in_features)
        num_rows = len(rows)
        if num_rows == 0:
            return hidden.new_empty(*hidden.shape[:-1], self.out_features)
        padded = pad(rows, (0, 0, 0, -num_rows % _MULTIPLE)).contiguous()
        room = PreparedRows(len(padded), self.in_features) if self.prepares_rows else None
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

    bits = 8

    def _pack(self, weight: Tensor) -> Tensor:
        wide = weight.float()
        highest = wide.abs().amax(dim=1)
        self._scales = torch.where(highest > 0, highest / _LARGEST, 1.0)
        rounded = (wide / self._scales[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
        return _lay_out_tiles(
            rounded.add_(self._library.quire_stored_offset()).to(torch.int16).byte()
        )


class Int4Linear(TiledLinear):
    """``nn.Linear`` on bfloat16 activations, which are rounded as for :class:`Int8Linear`. The
    weight is rounded to 4 bits by groups of 32 inputs, as int4.h describes."""

    bits = 4

    def _pack(self, weight: Tensor) -> Tensor:
        outputs, inputs = weight.shape
        pieces = -(-inputs // _GROUP)
        self._scales = torch.empty(outputs)
        packed = _arena.take(outputs // _LANES * pieces * _PIECE_BYTES)
        packed = packed.view(outputs // _LANES, pieces, _PIECE_BYTES)
        for begin in range(0, outputs, _ROUNDED_AT_ONCE):
            part = slice(begin, min(outputs, begin + _ROUNDED_AT_ONCE))
            wide = pad(weight[part].float(), (0, pieces * _GROUP - inputs))
            steps, scales, minima, values = _round_to_nibbles(wide.view(len(wide), 2 * pieces, -1))
            self._scales[part] = steps
            blocks = slice(part.start // _LANES, part.stop // _LANES)
            packed[blocks] = _lay_out_pieces(scales, minima, values)
        return packed


def _round_to_nibbles(weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``weight`` [out, groups, 32] as steps [out], and in uint8 scales and minima [out, groups] and
    values [out, groups, 32]. Of several ranges for each group, the least-squares best is kept."""
    lowest, highest = weight.amin(2).clamp_max_(0), weight.amax(2).clamp_min_(0)
    levels = (highest - lowest) / _LARGEST_NIBBLE
    sample = slice(0, _SAMPLED)  # of the outputs: all of them had 4 bits, or none
    had_4_bits = bool((_spacing(weight[sample], levels[sample]) > levels[sample]).any())
    spacing = _spacing(weight, levels) if had_4_bits else levels
    steps = spacing.amax(1) / _LARGEST_BYTE
    steps = torch.where(steps > 0, steps, 1.0)
    inverse = steps.reciprocal()[:, None]
    weight = weight * inverse[..., None]
    bound = _NO_ERROR**2 * weight.square().sum()
    best: tuple[Tensor, ...] | None = None
    tried = [(share, levels) for share in _SHARES]
    for share, level in ([(1.0, spacing)] if had_4_bits else []) + tried:
        scales = (share * inverse * level).round_().clamp_(1, _LARGEST_BYTE)
        minima = (share * inverse * -lowest / _MINIMUM_STEP).round_().clamp_(0, _LARGEST_BYTE)
        offsets = _MINIMUM_STEP * minima[..., None]
        values = ((weight + offsets) / scales[..., None]).round_().clamp_(0, _LARGEST_NIBBLE)
        errors = (values * scales[..., None] - offsets - weight).square_().sum(2)
        trial: tuple[Tensor, ...] = (errors, scales, minima, values)
        if best is not None:
            is_better = errors < best[0]
            trial = tuple(
                torch.where(is_better if new.dim() == 2 else is_better[..., None], new, old)
                for new, old in zip(trial, best, strict=True)
            )
        best = trial
        if best[0].sum() <= bound:
            break
    assert best is not None
    scales, minima, values = (x.to(torch.uint8) for x in best[1:])
    return steps, scales, minima, values


def _spacing(weight: Tensor, levels: Tensor) -> Tensor:
    """Return the steps between neighbouring values of each group [out, groups] whose weights had 4
    bits before, up to the rounding of bfloat16; ``levels`` for other groups.

    Groups that do not use the whole range of their 4 bits have fewer steps than 15.
    """
    in_order = weight.sort(2).values
    gaps = in_order.diff(dim=2)
    width = in_order[..., -1] - in_order[..., 0]
    gaps = torch.where(gaps > width[..., None] / _MOST_GAPS, gaps, torch.inf)
    is_least = gaps < _ALIKE * gaps.amin(2, keepdim=True)
    least = torch.where(is_least, gaps, 0).sum(2) / is_least.sum(2).clamp_min_(1)
    count = (width / least).nan_to_num_(1).round_().clamp_(1, _LARGEST_NIBBLE)
    spacing = width / count
    places = (weight - in_order[..., :1]) / spacing[..., None]
    is_grid = (places - places.round()).abs().amax(2) < _NEAR
    return torch.where(is_grid & (spacing > levels), spacing, levels)


def _lay_out_pieces(scales: Tensor, minima: Tensor, values: Tensor) -> Tensor:
    """Return the layout that int4.h describes, [out / 16, groups / 2, bytes]."""
    blocks, pieces = scales.shape[0] // _LANES, scales.shape[1] // 2
    fours = values.view(blocks, _LANES, pieces, _GROUP // 8, 2, 4)
    both = fours[..., 0, :] | fours[..., 1, :] << 4
    parts = (
        scales.view(blocks, _LANES, pieces, 2).permute(0, 2, 3, 1),
        minima.view(blocks, _LANES, pieces, 2).permute(0, 2, 1, 3),
        both.permute(0, 2, 3, 1, 4),
    )
    return torch.cat([part.flatten(2) for part in parts], dim=2)


def _lay_out_tiles(weight: Tensor) -> Tensor:
    """Return a copy of ``weight`` as [out / 16][in / n][16][n], where n inputs take four bytes."""
    words = weight.contiguous().view(torch.int32).numpy()
    tiles = words.reshape(len(words) // _LANES, _LANES, -1).transpose(0, 2, 1)
    room = _arena.take(words.nbytes + _READ_AFTER)[: words.nbytes]
    # torch copies a transposed matrix in a tenth of numpy's speed.
    np.copyto(room.view(torch.int32).numpy().reshape(tiles.shape), tiles)
    return room.view(weight.dtype)
