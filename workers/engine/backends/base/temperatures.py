"""Temperatures of attention by position (Llama 4), of rows that belong to many sequences."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

_positions: ContextVar[Tensor] = ContextVar("positions of the rows of the forward that runs")


def is_tuned(attention: Any) -> bool:
    """Return whether an attention layer scales its queries by their positions, which it counts from
    what a cache says that it holds."""
    return (
        hasattr(attention, "floor_scale")
        and bool(getattr(attention, "attn_temperature_tuning", False))
        and not getattr(attention, "use_rope", True)
    )


def compute_temperatures(attention: Any, positions: Tensor) -> Tensor:
    """Return the factors of queries at ``positions`` in a layer that is tuned, in float32."""
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
