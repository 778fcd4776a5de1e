"""NVIDIA ModelOpt: 8-bit floating point, or NVFP4, where layers may differ (``MIXED_PRECISION``).

A module has ``weight`` in FP8 and ``weight_scale``: one value for all, one for each row, or one for
each block of 128 times 128. In NVFP4, ``weight`` [out, in / 2] in uint8 has two numbers a byte, the
first one low; ``weight_scale`` [out, in / 16] in FP8 and ``weight_scale_2`` for all multiply them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workers.engine.checkpoints.quantized.numbers import E2M1, nibbles, spread
from workers.engine.checkpoints.quantized.stored import Parts, Stored, compose

_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4")
_MIXED = "MIXED_PRECISION"
_BLOCK = (128, 128)
_UNUSED = ("input_scale", "output_scale", "k_scale", "v_scale")


def weights(tensors: Mapping[str, Stored], settings: Mapping[str, Any]) -> dict[str, Stored]:
    left = {name: each for name, each in tensors.items() if not name.endswith(_UNUSED)}
    left = compose(left, ("weight_scale_2", "weight", "weight_scale"), "weight", _expand_fp4)
    return compose(left, ("weight_scale", "weight"), "weight", _scale)


def refusal(settings: Mapping[str, Any]) -> str | None:
    algorithms = {settings.get("quant_algo") or "FP8"}
    if _MIXED in algorithms:
        layers = (settings.get("quantized_layers") or {}).values()
        algorithms = {layer.get("quant_algo") for layer in layers}
    unknown = sorted(map(str, algorithms.difference(_ALGORITHMS)))
    return f"quant_algo {unknown[0]!r} is none of {', '.join(_ALGORITHMS)}" if unknown else None


def _scale(parts: Parts) -> Tensor:
    weight, scales = parts["weight"], parts["weight_scale"]
    if not weight.is_floating_point():
        raise ValueError(f"the weight is stored as {weight.dtype} without weight_scale_2")
    if scales.dim() == 4:  # [rows, 1, columns, 1] of blocks
        scales = scales[:, 0, :, 0]
    return weight.float() * spread(scales, weight.shape, _BLOCK)


def _expand_fp4(parts: Parts) -> Tensor:
    weight, scales = parts["weight"], parts["weight_scale"].float()
    if weight.dtype != torch.uint8:
        raise ValueError(f"the weight is stored as {weight.dtype}, not as bytes of two numbers")
    values = E2M1[nibbles(weight).long()]
    scaled = values * scales.repeat_interleave(values.shape[1] // scales.shape[1], 1)
    return scaled * parts["weight_scale_2"].float()
