"""MXFP4, as gpt-oss stores its experts: FP4 in blocks of 32 with a power of two each.

``x_blocks`` [..., out, in / 32, 16] has two values a byte, the first one low, ``x_scales``
[..., out, in / 32] exponents plus 127. transformers has experts as [..., in, out].
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from workers.engine.checkpoints.quantized.numbers import E2M1, nibbles, powers_of_two
from workers.engine.checkpoints.quantized.stored import Parts, Stored, compose


def weights(tensors: Mapping[str, Stored], settings: Mapping[str, Any]) -> dict[str, Stored]:
    return compose(tensors, ("_blocks", "_scales"), "", _weight)


def refusal(settings: Mapping[str, Any]) -> str | None:
    return None


def _weight(parts: Parts) -> Tensor:
    values = E2M1[nibbles(parts["_blocks"]).long()]
    scaled = values * powers_of_two(parts["_scales"])[..., None]
    return scaled.flatten(-2).transpose(-1, -2).contiguous()
