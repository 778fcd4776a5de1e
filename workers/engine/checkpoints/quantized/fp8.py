"""Weights in 8-bit floating point with a scale for all, for each row or for each block.

``quant_method`` is ``fp8`` (DeepSeek, Qwen, transformers' own) or ``fbgemm_fp8`` (Llama's). The
scales of activations are not used: activations are not rounded to 8 bits here.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from workers.engine.checkpoints.quantized.numbers import spread
from workers.engine.checkpoints.quantized.stored import Parts, Stored, compose

_SCALES = ("_scale_inv", "_scale")
_UNUSED = ("activation_scale", "input_scale", "input_scale_ub", "k_scale", "v_scale")


def weights(tensors: Mapping[str, Stored], settings: Mapping[str, Any]) -> dict[str, Stored]:
    block = settings.get("weight_block_size")
    left = {name: each for name, each in tensors.items() if not name.endswith(_UNUSED)}

    for scale in _SCALES:

        def scale_blocks(parts: Parts, scale: str = scale) -> Tensor:
            weight = parts[""].float()
            return weight * spread(parts[scale], weight.shape, block)

        # A weight that is named "x" has its scales in "x_scale_inv".
        left = compose(left, (scale, ""), "", scale_blocks)
    return left


def refusal(settings: Mapping[str, Any]) -> str | None:
    return None
