"""AutoRound: weights in the packing of GPTQ or AWQ, which ``packing_format`` names.

Names and zero points follow AutoRound's inference backends,
https://github.com/intel/auto-round/blob/main/auto_round/inference/backend.py.
"""

from collections.abc import Mapping
from typing import Any

from workers.engine.checkpoints.quantized import awq, gptq
from workers.engine.checkpoints.quantized.stored import Stored

_DEFAULT = "auto_round:auto_gptq"
_GPTQ = {
    _DEFAULT: "gptq",
    "auto_round:gptq": "gptq",
    "auto_round": "gptq_v2",
    "auto_round:gptqmodel": "gptq_v2",
}
"""Packings of GPTQ, and the layout of its zero points."""
_AWQ = ("auto_round:auto_awq", "auto_round:awq")


def weights(tensors: Mapping[str, Stored], settings: Mapping[str, Any]) -> dict[str, Stored]:
    packing = _packing(settings)
    if packing in _AWQ:
        return awq.weights(tensors, settings)
    return gptq.weights(tensors, {"format": _GPTQ[packing]})


def refusal(settings: Mapping[str, Any]) -> str | None:
    packing, bits = _packing(settings), settings.get("bits")
    if packing in _AWQ:
        return awq.refusal({"bits": bits})
    if packing not in _GPTQ:
        return f"its packing_format {packing!r} is none of {', '.join([*_GPTQ, *_AWQ])}"
    return gptq.refusal({"bits": bits})


def _packing(settings: Mapping[str, Any]) -> str:
    return str(settings.get("packing_format") or _DEFAULT)
