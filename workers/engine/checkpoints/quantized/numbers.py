"""Unpacks the small number formats of checkpoints into tensors that support arithmetic."""

from collections.abc import Sequence

import torch
from torch import Tensor

WORD = 32
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""The values of FP4: a sign, two bits of exponent, one of mantissa (OCP MX v1.0, 5.3.3)."""


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """``words`` [n, m] in int32 as ``WORD // bits`` numbers each, the lowest first, in uint8
    [n, m * (WORD // bits)]. Leftover bits of a word are unused."""
    shifts = torch.arange(0, WORD // bits * bits, bits, dtype=torch.int32)
    numbers = words[..., None] >> shifts & (1 << bits) - 1
    return numbers.to(torch.uint8).flatten(-2)


def unpack_stream(words: Tensor, bits: int) -> Tensor:
    """``words`` [n, m] in int32, each row one bit stream that starts at the lowest bit, as numbers
    in uint8 [n, m * WORD / bits]."""
    if WORD % bits == 0:
        return unpack_words(words, bits)
    each = words[..., None] >> torch.arange(WORD, dtype=torch.int32) & 1
    numbers = each.view(len(words), -1, bits)
    total: Tensor = (numbers << torch.arange(bits, dtype=torch.int32)).sum(-1)
    return total.to(torch.uint8)


def nibbles(values: Tensor, low_first: bool = True) -> Tensor:
    """``values`` [..., n] in uint8, each of which packs two 4-bit numbers, as [..., 2 n]."""
    halves = (values & 15, values >> 4)
    return torch.stack(halves if low_first else halves[::-1], -1).flatten(-2)


def powers_of_two(exponents: Tensor) -> Tensor:
    """Return the numbers of E8M0, in uint8 or as torch's type, in float32."""
    return exponents.view(torch.float8_e8m0fnu).float()


def spread(scales: Tensor, shape: Sequence[int], block: Sequence[int] | None) -> Tensor:
    """``scales`` as numbers that multiply a tensor of ``shape`` [..., rows, columns].

    There is one scale for all, [..., n] one for each row, or [..., n, m] one for each ``block`` of
    rows and columns; the last blocks may be cut off. Raises ValueError for shapes that do not fit.
    """
    scales = scales.float()
    if scales.numel() == 1:
        return scales.reshape(())
    if scales.dim() == len(shape) - 1:
        scales = scales[..., None]
    for axis in (-2, -1):
        count, size = scales.shape[axis], shape[axis]
        if count in (1, size):
            continue
        if block is None or -(-size // block[axis]) != count:
            raise ValueError(f"{count} scales do not fit {size} values in blocks of {block}")
        scales = scales.repeat_interleave(block[axis], axis).narrow(axis, 0, size)
    return scales
