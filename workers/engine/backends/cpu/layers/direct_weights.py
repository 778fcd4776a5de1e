"""Finds the linear layers whose weights a model reads by itself, instead of calling the layer.

Packing such a layer would take its weight away.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from workers.engine.compat import without_watched_tensors

LayerName = tuple[type[nn.Module], str]
"""The class of a layer's parent, and the layer's name there."""


class _Watched(Tensor):
    """A weight that reports computations with it. Reading its type or shape is not reported."""

    note: Callable[[], None]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with without_watched_tensors():
            result = func(*args, **(kwargs or {}))
        # Some attributes are the weight itself in another form, as `T` and `data`.
        if getattr(func, "__name__", "") != "__get__" or isinstance(result, Tensor):
            for weight in _iter_watched((*args, *(kwargs or {}).values())):
                weight.note()
        return result


def _iter_watched(values: Iterable[Any]) -> Iterator[_Watched]:
    for value in values:
        if isinstance(value, _Watched):
            yield value
        elif isinstance(value, (list, tuple)):  # as `torch.cat` takes them
            yield from _iter_watched(value)


@contextmanager
def finding_direct_weights(model: nn.Module) -> Iterator[set[LayerName]]:
    """Yield a set to which forwards inside the context add layers."""
    names: set[LayerName] = set()
    running: list[nn.Module] = []
    handles = []

    def enter(linear: nn.Module, _: Any) -> None:
        running.append(linear)

    def leave(*_: Any) -> None:
        running.pop()

    def note(linear: nn.Module, name: LayerName) -> None:
        if not running or running[-1] is not linear:
            names.add(name)

    watched = [
        (child, (type(parent), name))
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    for linear, name in watched:
        weight = linear.weight.detach().as_subclass(_Watched)
        weight.note = partial(note, linear, name)
        vars(linear)["weight"] = weight  # found before the parameter
        handles += [linear.register_forward_pre_hook(enter), linear.register_forward_hook(leave)]
    try:
        yield names
    finally:
        for handle in handles:
            handle.remove()
        for linear, _ in watched:
            vars(linear).pop("weight", None)
