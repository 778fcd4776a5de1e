"""bitsandbytes: NF4 and FP4 by blocks of the flat weight, or int8 by rows.

In 4 bits, a module has ``weight`` in uint8, two values per byte with the first in the high half.
The names of other tensors begin with ``weight.``: ``absmax`` by block, ``quant_map`` with the 16
numbers that values stand for, and ``quant_state.bitsandbytes__nf4`` or ``__fp4`` with JSON text.
With double quantization, ``absmax`` is an index into ``nested_quant_map``, scaled by
``nested_absmax``. In 8 bits, a module has ``weight`` and ``SCB``, the largest magnitude of each
row.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workers.engine.checkpoints.quantized.numbers import nibbles
from workers.engine.checkpoints.quantized.stored import Parts, Stored, compose

_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
_BESIDE = (
    "weight",
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
)
_LARGEST = 127
_ROWS = 0
"""The ``weight_format`` of rows as they are; others were laid out for kernels of old GPUs."""


def weights(tensors: Mapping[str, Stored], settings: Mapping[str, Any]) -> dict[str, Stored]:
    left = dict(tensors)
    for state in _STATES:

        def unpack_4_bits(parts: Parts, state: str = state) -> Tensor:
            return _unpack_4_bits(parts, json.loads(bytes(parts[state].tolist())))

        left = compose(left, (state, *_BESIDE), "weight", unpack_4_bits)
    return compose(left, ("SCB", "weight", "weight_format"), "weight", _unpack_8_bits)


def refusal(settings: Mapping[str, Any]) -> str | None:
    return None


def _unpack_4_bits(parts: Parts, state: Mapping[str, Any]) -> Tensor:
    highest = parts["weight.absmax"]
    if "weight.nested_absmax" in parts:
        of_block = torch.arange(len(highest)) // state["nested_blocksize"]
        indices = parts["weight.nested_quant_map"][highest.long()]
        highest = indices * parts["weight.nested_absmax"][of_block] + state["nested_offset"]
    places = nibbles(parts["weight"].flatten(), low_first=False).long()
    values = parts["weight.quant_map"].float()[places]
    shape = torch.Size(state["shape"])
    values = values[: shape.numel()]
    of_block = torch.arange(len(values)) // state["blocksize"]
    return (values * highest.float()[of_block]).view(shape)


def _unpack_8_bits(parts: Parts) -> Tensor:
    if order := int(parts.get("weight_format", _ROWS)):
        raise ValueError(f"weight_format is {order}: only {_ROWS}, whole rows, is read")
    return parts["weight"].float() * (parts["SCB"].float() / _LARGEST)[:, None]
