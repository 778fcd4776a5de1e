"""AWQ: weights in 4 bits by groups of inputs, each with a scale and a zero point.

A module has ``qweight`` [in, out / 8], ``qzeros`` [groups, out / 8], both in int32, and ``scales``
[groups, out]. The layout is that of AutoAWQ's GEMM kernels.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workers.engine.checkpoints.quantized.numbers import unpack_words
from workers.engine.checkpoints.quantized.stored import Parts, Stored, compose

_BITS = 4
_PLACES = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
"""Where in a word each of 8 columns is."""


def weights(tensors: Mapping[str, Stored], settings: Mapping[str, Any]) -> dict[str, Stored]:
    return compose(tensors, ("qweight", "qzeros", "scales"), "weight", _weight)


def refusal(settings: Mapping[str, Any]) -> str | None:
    bits = settings.get("bits", settings.get("w_bit", _BITS))
    version = str(settings.get("version", settings.get("format", "gemm"))).lower()
    if bits != _BITS:
        return f"AWQ has {_BITS} bits, not {bits}"
    return (
        None if version == "gemm" else f"of AWQ's layouts only 'gemm' can be read, not {version!r}"
    )


def _weight(parts: Parts) -> Tensor:
    scales = parts["scales"].float()
    groups, _ = scales.shape
    values = _columns(parts["qweight"])
    size = len(values) // groups
    zeros = _columns(parts["qzeros"]).repeat_interleave(size, 0)
    return ((values - zeros) * scales.repeat_interleave(size, 0)).T.contiguous()


def _columns(words: Tensor) -> Tensor:
    by_word = unpack_words(words, _BITS).view(len(words), -1, len(_PLACES))
    return by_word[..., _PLACES].flatten(-2).float()
