"""The states of convolutions and recurrences: one row for each sequence, and for each saved copy.

A module of transformers asks its cache for the state of the rows that it computes, and hands back
their new state. :class:`RowStates` is that cache, for one module and some rows of the table.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from workers.engine.backends.base.host_memory import lazy_zeros

_CPU = torch.device("cpu")

Rows = slice | Tensor


class StateKey(NamedTuple):
    """Names one of a module's states: modules may have several convolutions."""

    kind: Literal["convolution", "recurrence", "window"]
    number: int = 0


class StateShape(NamedTuple):
    """The shape and type of one row of a state. A convolution's last size is its kernel size."""

    sizes: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.sizes) * self.dtype.itemsize


StateShapes = Mapping[nn.Module, Mapping[StateKey, StateShape]]


def bytes_per_row(shapes: StateShapes) -> int:
    """Return the memory that the states of one sequence take."""
    return sum(shape.num_bytes for states in shapes.values() for shape in states.values())


class StateTable:
    """The states of all modules, one tensor [rows, ...] for each.

    In memory, the columns of a convolution lie one after the other, as the C forward reads them."""

    def __init__(self, shapes: StateShapes, num_rows: int, device: torch.device = _CPU) -> None:
        self.device = device
        self._tensors = {
            module: {
                key: _make_states(key, shape, num_rows, device) for key, shape in states.items()
            }
            for module, states in shapes.items()
        }

    def get_states(self, module: nn.Module) -> Mapping[StateKey, Tensor]:
        """Return the states of all rows."""
        return self._tensors[module]

    def select(self, module: nn.Module, rows: Rows, is_fresh: bool) -> "RowStates":
        """Return a module's states for some rows. A ``fresh`` row has none yet."""
        return RowStates(self._tensors[module], rows, is_fresh)

    def copy(self, module: nn.Module, sources: Tensor, targets: Tensor) -> None:
        """Copy rows of one module's states."""
        for tensor in self._tensors[module].values():
            tensor.index_copy_(0, targets, tensor.index_select(0, sources))

    def copy_rows(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows of all states."""
        for module in self._tensors:
            self.copy(module, sources, targets)

    def copy_row(self, source: int, target: int) -> None:
        """Copy one row of all states."""
        for states in self._tensors.values():
            for tensor in states.values():
                tensor[target].copy_(tensor[source])


def _make_states(key: StateKey, shape: StateShape, num_rows: int, device: torch.device) -> Tensor:
    def make(*sizes: int) -> Tensor:
        if device.type == "cpu":
            return lazy_zeros(sizes, shape.dtype)
        return torch.zeros(sizes, dtype=shape.dtype, device=device)

    if key.kind != "convolution":
        return make(num_rows, *shape.sizes)
    *channels, kernel = shape.sizes
    return make(num_rows, kernel, *channels).movedim(1, -1)


class CacheStandIn(ABC):
    """The methods of a cache that modules of transformers read and write states with."""

    @abstractmethod
    def _get(self, key: StateKey) -> Tensor | None:
        """Return a state, or None if there is none yet."""

    @abstractmethod
    def _put(self, key: StateKey, state: Tensor) -> None:
        """Keep a state that a module computed."""

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._get(StateKey("convolution", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._get(StateKey("recurrence", state_idx))

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        self._put(StateKey("recurrence", state_idx), recurrent_states)
        return recurrent_states

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        return self._get(StateKey("recurrence"))

    def set_linear_cache(self, layer_idx: int, linear_cache: Tensor) -> None:
        self._put(StateKey("recurrence"), linear_cache)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False


class RowStates(CacheStandIn):
    """Stands in for a transformers cache while one module computes some rows.

    Modules change some states in place and hand others back; :meth:`store` writes back the former.
    """

    def __init__(self, tensors: Mapping[StateKey, Tensor], rows: Rows, is_fresh: bool) -> None:
        self._tensors = tensors
        self._rows = rows
        self._is_fresh = is_fresh
        self._taken: dict[StateKey, Tensor] = {}

    def store(self) -> None:
        """Write back the states that the module was given."""
        if isinstance(self._rows, Tensor):
            for key, state in self._taken.items():
                self._tensors[key].index_copy_(0, self._rows, state)

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        """Append columns, and keep the last ones, as many as the kernel has. Returns all."""
        key = StateKey("convolution", state_idx)
        kernel = self._tensors[key].shape[-1]
        state = self._get(key)
        if state is not None:
            columns = torch.cat([state, conv_states], dim=-1)
        else:
            columns = pad(conv_states, (max(0, kernel - conv_states.shape[-1]), 0))
        self._put(key, columns[..., -kernel:])
        return columns

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        return not self._is_fresh

    def _get(self, key: StateKey) -> Tensor | None:
        if self._is_fresh:
            return None
        if (state := self._taken.get(key)) is None:
            state = self._taken[key] = self._tensors[key][self._rows]
        return state

    def _put(self, key: StateKey, state: Tensor) -> None:
        self._taken.pop(key, None)
        self._tensors[key][self._rows] = state.to(self._tensors[key].dtype)
