"""GPTQ: weights in 2, 3, 4 or 8 bits by groups of inputs, each with a scale and a zero point.

A module has ``qweight`` [in * bits / 32, out] and ``qzeros`` [groups, out * bits / 32] in int32,
``scales`` [groups, out], and ``g_idx`` [in], each input's group if groups are not in order. Words
hold the bits of their column or row as one stream. The layout ``gptq`` stores zero points less one,
``gptq_v2`` as they are. transformers 5 and GPTQModel name it ``format``, older writers
``checkpoint_format``, which transformers prefers to the other.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workers.engine.checkpoints.quantized.numbers import WORD, unpack_stream
from workers.engine.checkpoints.quantized.stored import Parts, Stored, compose

_BITS = (2, 3, 4, 8)
_ONE_LESS = {"gptq": 1, "gptq_v2": 0}


def weights(tensors: Mapping[str, Stored], settings: Mapping[str, Any]) -> dict[str, Stored]:
    less = _ONE_LESS[_layout(settings)]
    suffixes = ("qweight", "qzeros", "scales", "g_idx")
    return compose(tensors, suffixes, "weight", partial(_weight, less=less))


def refusal(settings: Mapping[str, Any]) -> str | None:
    layout = _layout(settings)
    if layout not in _ONE_LESS:
        return f"of GPTQ's layouts {', '.join(_ONE_LESS)} can be read, not {layout!r}"
    bits = settings.get("bits")
    return None if bits in _BITS else f"GPTQ has 2, 3, 4 or 8 bits, not {bits!r}"


def _layout(settings: Mapping[str, Any]) -> str:
    return str(settings.get("checkpoint_format") or settings.get("format") or "gptq").lower()


def _weight(parts: Parts, less: int) -> Tensor:
    scales = parts["scales"].float()
    groups, outputs = scales.shape
    # Per module, since some modules have more bits than the configuration states.
    bits = parts["qzeros"].shape[1] * WORD // outputs
    values = unpack_stream(parts["qweight"].T.contiguous(), bits)
    zeros = (unpack_stream(parts["qzeros"], bits) + less) & (1 << bits) - 1
    inputs = values.shape[1]
    group_of = parts.get("g_idx")
    if group_of is None:
        group_of = torch.arange(inputs) // -(-inputs // groups)
    group_of = group_of.long()
    return (values.float() - zeros.float().T[:, group_of]) * scales.T[:, group_of]
