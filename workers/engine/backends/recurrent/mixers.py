"""Finds the modules of a model that keep states of a sequence, and runs them on flat batches.

Nothing here depends on an architecture: a module that asks the cache for a state in a first forward
is one of them. All other modules compute each token by itself or attend over pages.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import pad

from workers.engine.backends.base.lora import Adapters
from workers.engine.backends.recurrent.batch import DecodeBatch, StateBatch, StateGroup
from workers.engine.backends.recurrent.states import CacheStandIn, StateKey, StateShape, StateShapes
from workers.engine.exceptions import UnsupportedModel

CACHE_ARGUMENTS = ("past_key_values", "cache_params")
"""The names under which modules of transformers take their cache."""


class Mixers:
    """The modules of one model that keep states. After :meth:`wrap`, they compute the groups of the
    active batch. Without an active batch, they compute as before."""

    def __init__(self, shapes: StateShapes, continues: bool = True) -> None:
        self.shapes = shapes
        self.continues = continues
        """Whether the modules can continue a sequence with several tokens at once."""
        self.batch: StateBatch | DecodeBatch | None = None
        self.adapters = Adapters()
        """Of sequences, which change what the modules compute."""

    def wrap(self, adapters: Adapters) -> None:
        """Let the modules compute the active batch, as these ``adapters`` change them."""
        self.adapters = adapters
        for module in self.shapes:
            module.forward = _GroupedForward(self, module)

    @contextmanager
    def active(self, batch: StateBatch | DecodeBatch | None) -> Iterator[None]:
        """Compute the groups of ``batch`` in the forward inside the context."""
        self.batch = batch
        try:
            yield
        finally:
            self.batch = None


class _GroupedForward:
    """A module's forward on a flat batch: once for each group, with the states of its rows."""

    def __init__(self, mixers: Mixers, module: nn.Module) -> None:
        self._mixers = mixers
        self._module = module
        self._forward: Callable[..., Any] = module.forward
        self._signature = inspect.signature(module.forward)
        self._cache_name = cache_argument(self._signature) or ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        batch = self._mixers.batch
        if batch is None:
            return self._forward(*args, **kwargs)
        given = self._signature.bind(*args, **kwargs)
        outputs = []
        for group in batch.groups:
            states = batch.table.select(self._module, group.rows, group.is_fresh)
            given.arguments[self._cache_name] = states
            with self._mixers.adapters.narrow(group.places):
                outputs.append(
                    self._forward(
                        *_split(given.args, group, batch.num_tokens),
                        **_split(given.kwargs, group, batch.num_tokens),
                    )
                )
            states.store()
            if len(group.saved):
                batch.table.copy(self._module, group.saved, group.saved_to)
        return _join(outputs, batch)


def _split(value: Any, group: StateGroup, num_tokens: int) -> Any:
    """Cut the group's part out of tensors with an entry for each token of the flat batch."""
    if isinstance(value, Tensor):
        per_token = value.dim() > 1 and value.shape[:2] == (1, num_tokens)
        return group.split(value) if per_token else value
    if isinstance(value, dict):
        return {name: _split(part, group, num_tokens) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_split(part, group, num_tokens) for part in value)
    return value


def _join(outputs: Sequence[Any], batch: StateBatch | DecodeBatch) -> Any:
    """Join the outputs of all groups to those of the flat batch, without outputs not per token."""
    if isinstance(outputs[0], tuple):
        return tuple(_join(parts, batch) for parts in zip(*outputs, strict=True))
    per_token = (
        isinstance(output, Tensor) and output.shape[1] == group.size
        for output, group in zip(outputs, batch.groups, strict=True)
    )
    if not all(per_token):
        return None
    joined = outputs[0].new_empty(batch.num_tokens, *outputs[0].shape[2:])
    for output, group in zip(outputs, batch.groups, strict=True):
        joined.index_copy_(0, group.places, output.flatten(0, 1))
    return joined[None]


def cache_argument(signature: inspect.Signature) -> str | None:
    return next((name for name in CACHE_ARGUMENTS if name in signature.parameters), None)


def find_mixers(model: nn.Module, run: Callable[[dict[str, Any]], object]) -> Mixers | None:
    """Return the modules that keep states, or None. ``run`` runs a forward of a few tokens with the
    given keyword arguments of the model. Raises UnsupportedModel."""
    name = cache_argument(inspect.signature(model.forward))
    if name is None:
        return None
    probe = _StateProbe()
    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(probe.enter))
        handles.append(module.register_forward_hook(probe.leave))
    try:
        run({name: probe})
    except UnsupportedModel:
        raise
    except Exception as error:  # the probe answers less than a cache
        if not probe.shapes:
            return None
        raise UnsupportedModel(
            f"{type(model).__name__} keeps states that cannot be batched: {error!r}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    for module in probe.shapes:
        inner = [other for other in module.modules() if other in probe.shapes]
        if len(inner) > 1 or cache_argument(inspect.signature(module.forward)) is None:
            raise UnsupportedModel(f"{type(module).__name__} shares its states with other modules")
    return Mixers(probe.shapes) if probe.shapes else None


class _StateProbe(CacheStandIn):
    """Stands in for the cache in a first forward of one short prompt, and records which modules
    keep states, and their shapes."""

    def __init__(self) -> None:
        self.shapes: dict[nn.Module, dict[StateKey, StateShape]] = {}
        self._running: list[nn.Module] = []

    def enter(self, module: nn.Module, _args: Any) -> None:
        self._running.append(module)

    def leave(self, *_: Any) -> None:
        self._running.pop()

    def _note(self, key: StateKey, state: Tensor, sizes: tuple[int, ...] | None = None) -> None:
        states = self.shapes.setdefault(self._running[-1], {})
        if key in states:
            raise UnsupportedModel(f"{type(self._running[-1]).__name__} runs more than once")
        states[key] = StateShape(sizes or tuple(state.shape[1:]), state.dtype)

    def _get(self, key: StateKey) -> None:
        return None

    def _put(self, key: StateKey, state: Tensor) -> None:
        self._note(key, state)

    # What modules of transformers call -----------------------------------------------------------

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        kernel = conv_kernel_size or conv_states.shape[-1]
        self._note(
            StateKey("convolution", state_idx), conv_states, (*conv_states.shape[1:-1], kernel)
        )
        missing = max(0, kernel - conv_states.shape[-1])
        return pad(conv_states, (missing, 0))

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        return False

    def update(self, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Keys and values go to the pages."""
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    is_compileable = False
    is_sliding: tuple[bool, ...] = ()
    layers: tuple[Any, ...] = ()
