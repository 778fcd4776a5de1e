"""compressed-tensors, as llm-compressor and vLLM write it: integers, 8-bit floating point, NVFP4.

A module has either ``weight`` in int8 or FP8, or ``weight_packed``: int32 words of 4 or 8 bits
(``pack-quantized``, values and zero points plus half their range, ``weight_shape`` beside them), or
bytes of two numbers in FP4 (``nvfp4-pack-quantized``, ``mxfp4-pack-quantized``). ``weight_scale``
has one value for all, or one per row, group of inputs or block; so does ``weight_zero_point``.
The quantization of activations is ignored.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workers.engine.checkpoints.quantized.numbers import (
    E2M1,
    nibbles,
    powers_of_two,
    spread,
    unpack_words,
)
from workers.engine.checkpoints.quantized.stored import Parts, Stored, compose

_WORDS = "pack-quantized"
_BITS = (4, 8)
"""Of a number in words."""
_FORMATS = (
    _WORDS,
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "dense",
    "mixed-precision",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
)
_BESIDE = (
    "weight_scale",
    "weight_zero_point",
    "weight_g_idx",
    "weight_shape",
    "weight_global_scale",
)
_UNUSED = (
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "output_zero_point",
    "k_scale",
    "v_scale",
    "q_scale",
)


def weights(tensors: Mapping[str, Stored], settings: Mapping[str, Any]) -> dict[str, Stored]:
    block = _block(settings)
    left = {name: each for name, each in tensors.items() if not name.endswith(_UNUSED)}
    packed = ("weight_packed", *_BESIDE)
    left = compose(left, packed, "weight", partial(_unpack, block=block))
    whole = ("weight_scale", "weight_zero_point", "weight")
    return compose(left, whole, "weight", partial(_scale, block=block))


def refusal(settings: Mapping[str, Any]) -> str | None:
    formats = {settings.get("format", "dense")}
    formats |= {group.get("format") for group in _groups(settings)} - {None}
    if unknown := sorted(formats.difference(_FORMATS)):
        return f"its format {unknown[0]!r} is none of {', '.join(_FORMATS)}"
    if (settings.get("sparsity_config") or {}).get("format", "dense") != "dense":
        return "sparse weights cannot be read"
    if settings.get("transform_config"):
        return "rotated weights (transform_config) cannot be read"
    if len({str(block) for block in map(_read_block, _groups(settings)) if block}) > 1:
        return "its config_groups have groups of several sizes"
    packed = [g for g in _groups(settings) if (g.get("format") or settings.get("format")) == _WORDS]
    bits = {(group.get("weights") or {}).get("num_bits", _BITS[0]) for group in packed}
    if other := sorted(bits.difference(_BITS)):
        return f"{_WORDS} has 4 or 8 bits, not {other[0]}"
    return None


def _groups(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((settings.get("config_groups") or {}).values())


def _block(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    return next(filter(None, map(_read_block, _groups(settings))), None)


def _read_block(group: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the rows and columns that share a scale, where that is neither one row nor all."""
    rule = group.get("weights") or {}
    if size := rule.get("block_structure"):
        return size[0], size[1]
    size = rule.get("group_size")
    return (1, size) if size and size > 0 else None


def _scale(parts: Parts, block: tuple[int, int] | None) -> Tensor:
    weight = parts["weight"].float()
    zeros = parts.get("weight_zero_point")
    if zeros is not None:
        weight = weight - spread(zeros, weight.shape, block)
    return weight * spread(parts["weight_scale"], weight.shape, block)


def _unpack(parts: Parts, block: tuple[int, int] | None) -> Tensor:
    packed, scales = parts["weight_packed"], parts["weight_scale"]
    if packed.dtype == torch.uint8:
        return _unpack_fp4(parts)
    rows, columns = parts["weight_shape"].tolist()
    bits = 4 if packed.shape[1] == -(-columns // 8) else 8
    half = 1 << bits - 1
    weight = unpack_words(packed, bits)[:, :columns].float() - half
    zeros = parts.get("weight_zero_point")
    if zeros is not None:
        zeros = unpack_words(zeros.T.contiguous(), bits)[:, :rows].T.float() - half
    group_of = parts.get("weight_g_idx")
    if group_of is not None and int(group_of[0]) >= 0:  # -1: in order
        scales = scales[:, group_of.long()]
        zeros = None if zeros is None else zeros[:, group_of.long()]
    if zeros is not None:
        weight = weight - spread(zeros, weight.shape, block)
    return weight * spread(scales, weight.shape, block)


def _unpack_fp4(parts: Parts) -> Tensor:
    scales = parts["weight_scale"]
    scales = powers_of_two(scales) if scales.dtype == torch.uint8 else scales.float()
    values = E2M1[nibbles(parts["weight_packed"]).long()]
    weight = values * scales.repeat_interleave(values.shape[1] // scales.shape[1], 1)
    overall = parts.get("weight_global_scale")
    return weight if overall is None else weight / overall
