"""Rotary embeddings whose frequencies no sequence changes."""

from typing import Any

import torch

_LONGROPE = "longrope"
_LENGTH = "original_max_seq_len"
"""The attribute of transformers' rotary modules with the length up to which frequencies stay."""
_TRAINED = "original_max_position_embeddings"
_KEPT = "default"
"""The kind whose frequencies transformers leaves as they are."""
_LONG = {"short_factor": "long_factor", "short_mscale": "long_mscale"}


def keep_frequencies(model: Any, max_len: int) -> None:
    """Have rotary embeddings keep one set of frequencies for sequences of up to ``max_len`` tokens,
    where they would read the longest position of each batch.

    Dynamic ones keep their first frequencies, if ``max_len`` tokens do not change them. Longrope
    keeps its short factors, if ``max_len`` tokens are within the length that they are for, or else
    its long ones."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, dict):  # by kind of layer
            module.rope_type = {
                layer: _keep(module, each, max_len, layer) for layer, each in kind.items()
            }
        elif isinstance(kind, str):
            module.rope_type = _keep(module, kind, max_len)


def _keep(module: Any, kind: str, max_len: int, layer: str | None = None) -> str:
    """Settle a module's frequencies for one kind of layer; return the kind that they now have."""
    if kind == _LONGROPE:
        rope = (
            module.config.rope_parameters if layer is None else module.config.rope_parameters[layer]
        )
        if max_len > rope[_TRAINED]:
            _use_long_factors(module, rope, {} if layer is None else {"layer_type": layer})
        return _KEPT
    length = getattr(module, _LENGTH, None)
    is_kept = "dynamic" in kind and isinstance(length, int) and max_len <= length
    return _KEPT if is_kept else kind


@torch.no_grad()
def _use_long_factors(module: Any, rope: dict[str, Any], options: dict[str, str]) -> None:
    """Leave a module with the frequencies that it has for a longer sequence. Some read the factors
    in each forward."""
    rope |= {short: rope[long] for short, long in _LONG.items() if long in rope}
    device = module.inv_freq.device if hasattr(module, "inv_freq") else None
    beyond = torch.tensor([[rope[_TRAINED]]], device=device)
    module(torch.empty(0, device=device), beyond, **options)
