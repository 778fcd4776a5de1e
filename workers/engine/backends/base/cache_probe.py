"""What a first forward shows about the attention layers of a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from torch import Tensor, nn

from workers.engine.core.layer_shape import LayerShape, Visible
from workers.engine.exceptions import UnsupportedModel


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """How one layer turns scores into weights."""

    scale: float
    visible: Visible
    softcap: float | None
    sinks: Tensor | None = None
    """A score per head [heads] that counts in the sum of weights and has no value (Xiao et al.,
    "Efficient streaming language models with attention sinks", 2023)."""

    @classmethod
    def pop(cls, options: dict[str, Any], head_dim: int, visible: Visible | None) -> Self:
        """Read the rule from an attention layer's arguments. ``visible`` is the model's mask;
        without a mask, the arguments alone define the rule."""
        scaling = options.pop("scaling", None)
        window = options.pop("sliding_window", None)
        return cls(
            scale=head_dim**-0.5 if scaling is None else scaling,
            visible=Visible(window) if visible is None else visible,
            softcap=options.pop("softcap", None),
            sinks=options.pop("s_aux", None),
        )


class CacheProbe:
    """Stands in for the cache in a first forward of a few tokens, and records which modules attend,
    by which rules, which shapes they store, and their keys [tokens, heads, dim]."""

    layers: Mapping[nn.Module, Any] = MappingProxyType({})
    """It has no layers: a layer that a cache lacks is one that is being probed."""

    def __init__(self) -> None:
        self.shapes: dict[nn.Module, LayerShape] = {}
        self.rules: dict[nn.Module, AttentionRule] = {}
        self.keys: dict[nn.Module, Tensor] = {}
        self._values: dict[nn.Module, Tensor] = {}
        self.positionless: set[nn.Module] = set()
        """Modules that attend and whose keys do not depend on positions."""

    def note(
        self,
        module: nn.Module,
        key: Tensor,
        value: Tensor,
        rule: AttentionRule,
        rate: int | None = None,
    ) -> None:
        """Record ``key`` and ``value`` [tokens, heads, dim], which a cache would store, and how
        many tokens have an entry together, if any."""
        if module in self.shapes:
            raise UnsupportedModel(f"{type(module).__name__} attends more than once per forward")
        self.shapes[module] = LayerShape(
            key.shape[1],
            key.shape[2],
            value.shape[2],
            rule.visible,
            rule.sinks is not None,
            rule.softcap is not None,
            kept_by=self._find_keeper(key, value),
            rate=rate,
        )
        self.rules[module] = rule
        self.keys[module] = key
        self._values[module] = value

    def _find_keeper(self, key: Tensor, value: Tensor) -> nn.Module | None:
        """Return the first module that stored what has this very memory, if one did."""
        for module, known in self.keys.items():
            if _is_same_memory(known, key) and _is_same_memory(self._values[module], value):
                return module
        return None

    def forget_tensors(self) -> None:
        """Free the keys and values."""
        self.keys.clear()
        self._values.clear()

    def note_index(self, module: nn.Module, keys: Tensor, rate: int | None = None) -> None:
        """Record the index keys [n, dim] of an indexer, which a cache would store: one of each
        token, or of ``rate`` tokens together."""
        if module in self.shapes:
            raise UnsupportedModel(f"{type(module).__name__} runs more than once per forward")
        dim = keys.shape[1]
        self.shapes[module] = LayerShape(1, dim, 0, rate=rate, has_tokens=rate is None)


def _is_same_memory(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same view. ``is_set_to`` says so too, but not of tensors
    that have no memory, such as those of a model that is only studied."""
    views = ((x.storage_offset(), x.shape, x.stride()) for x in (a, b))
    return a.untyped_storage() is b.untyped_storage() and next(views) == next(views)
