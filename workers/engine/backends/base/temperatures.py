"""Temperatures of attention by position, of rows that belong to many sequences: those of Llama 4,
whose layers do not know the positions, and of Ministral 3, whose layers do."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

_TUNED_LAST = "get_llama_4_attn_scale"
"""The function of transformers that computes the factors from positions."""
_BETA = "llama_4_scaling_beta"
_LENGTH = "original_max_position_embeddings"

_positions: ContextVar[Tensor] = ContextVar("positions of the rows of the forward that runs")


def is_tuned(attention: Any) -> bool:
    """Return whether an attention layer scales its queries by their positions, which it counts from
    what a cache says that it holds."""
    return (
        hasattr(attention, "floor_scale")
        and bool(getattr(attention, "attn_temperature_tuning", False))
        and not getattr(attention, "use_rope", True)
    )


def is_tuned_last(attention: Any) -> bool:
    """Return whether an attention layer scales its queries by their positions, which it is given,
    after it has rotated them."""
    has_function = hasattr(sys.modules[type(attention).__module__], _TUNED_LAST)
    return has_function and _get_rope(attention).get(_BETA) is not None


def get_tuning(attention: Any) -> tuple[float, float] | None:
    """Return what decides the factors of a layer's queries: the positions of a step, and how much
    the factors grow. None if queries are not scaled by their positions."""
    if is_tuned(attention):
        return float(attention.floor_scale), float(attention.attn_scale)
    if is_tuned_last(attention):
        rope = _get_rope(attention)
        return float(rope[_LENGTH]), float(rope[_BETA])
    return None


def _get_rope(attention: Any) -> dict[str, Any]:
    return getattr(getattr(attention, "config", None), "rope_parameters", None) or {}


def compute_temperatures(attention: Any, positions: Tensor) -> Tensor:
    """Return the factors of queries at ``positions`` [positions] in a layer that is tuned, in
    float32."""
    if is_tuned_last(attention):
        rope = _get_rope(attention)
        scale = getattr(sys.modules[type(attention).__module__], _TUNED_LAST)
        factors: Tensor = scale(positions[None], rope[_BETA], rope[_LENGTH])
        return factors.flatten().float()
    steps = torch.floor((positions.float() + 1.0) / float(attention.floor_scale))
    return torch.log1p(steps) * float(attention.attn_scale) + 1.0


def follow_positions(model: nn.Module) -> None:
    """Have the tuned layers of ``model`` count each row's position by itself in a forward inside
    :func:`placing`. To do so twice changes nothing."""
    for module in model.modules():
        if is_tuned(module) and _give_positions not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_give_positions, with_kwargs=True)


@contextmanager
def placing(positions: Tensor) -> Iterator[None]:
    """Let rows have these ``positions`` [rows] in the forward inside the context."""
    token = _positions.set(positions)
    try:
        yield
    finally:
        _positions.reset(token)


class _RowPositions:
    """Stands in for a cache that a tuned layer asks how many tokens precede its rows: the answer
    differs by row. It stores nothing."""

    def __init__(self, positions: Tensor) -> None:
        self._positions = positions

    def get_seq_length(self, *_: Any) -> Tensor:
        """Return what makes the positions from the numbers of the rows, [rows]."""
        rows = torch.arange(len(self._positions), device=self._positions.device)
        return self._positions - rows

    def update(self, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return key, value


def _give_positions(module: nn.Module, args: Any, options: dict[str, Any]) -> Any:
    positions = _positions.get(None)
    if positions is None:
        return None
    return args, {**options, "past_key_values": _RowPositions(positions)}
