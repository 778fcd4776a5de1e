"""What the attention functions of all devices share: the metadata of the forward that runs, the
rule of a layer, and masks."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.base.visibility import get_visible
from workers.engine.core.layer_shape import Visible
from workers.engine.exceptions import UnsupportedModel

_HARMLESS = frozenset(
    {"position_ids", "use_cache", "output_attentions", "output_hidden_states", "logits_to_keep"}
)
"""Arguments of a model's attention layer that this function may ignore."""

_current: ContextVar[Any] = ContextVar("metadata of the forward that runs")
"""Not an argument: some models do not pass theirs on to their attention layers."""


@contextmanager
def attending(metadata: Any) -> Iterator[None]:
    """Make the metadata available to attention layers for the forward inside the context."""
    token = _current.set(metadata)
    try:
        yield
    finally:
        _current.reset(token)


def current_metadata() -> Any:
    """Return the metadata of the current forward: :class:`AttentionMetadata` or its GPU
    counterpart."""
    return _current.get()


def is_over_pages() -> bool:
    """Return whether the current forward is one over pages."""
    return _current.get(None) is not None


def take_up(
    module: nn.Module,
    tensors: tuple[Tensor, Tensor, Tensor],
    attention_mask: Tensor | None,
    options: dict[str, Any],
    rate: int | None = None,
) -> tuple[AttentionRule, Tensor, Tensor, Tensor]:
    """Return an attention function's inputs beside its metadata: the attention rule, and query, key
    and value, each [tokens, its heads, dim]. A probe of the model records the rule, and refuses
    what paged attention cannot do. ``rate`` tokens have an entry together, if any have."""
    query, key, value = (x.squeeze(0).transpose(0, 1) for x in tensors)
    cache = current_metadata().cache
    if (layer := cache.layers.get(module)) is None:
        visible = None if attention_mask is None else _require_visible(module, attention_mask)
        rule = AttentionRule.pop(options, query.shape[-1], visible)
        refuse_unknown(module, options)
        cache.note(module, key, value, rule, rate)
    else:
        visible = layer.shape.visible
        rule = AttentionRule.pop(options, query.shape[-1], visible)
    return rule, query, key, value


def _require_visible(module: nn.Module, attention_mask: Tensor) -> Visible:
    if (visible := get_visible(attention_mask)) is None:
        raise UnsupportedModel(f"{type(module).__name__} builds an attention mask of its own")
    return visible


def softmax_with_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """Weights [..., tokens] that sum to less than one: each row has a further score, its sink
    [..., 1], whose weight is dropped."""
    sinks = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]


def visibility_bias(positions: Tensor, length: int, visible: Visible, dtype: torch.dtype) -> Tensor:
    """Return the mask of a token at each of ``positions`` [...] over ``length`` places: 0 where it
    attends and -inf elsewhere, [..., length]."""
    places = torch.arange(length, device=positions.device)
    hidden = visible.hides(positions[..., None], places)
    bias = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return bias.masked_fill_(hidden, -torch.inf)


def refuse_unknown(module: nn.Module, options: dict[str, Any]) -> None:
    """Refuse, while the model is loaded, any argument that this function would silently ignore."""
    name = type(module).__name__
    if not getattr(module, "is_causal", True) or options.pop("is_causal", True) is False:
        raise UnsupportedModel(f"{name} does not attend causally")
    if options.pop("dropout", 0.0):
        raise UnsupportedModel(f"{name} applies dropout at inference")
    for option, setting in options.items():
        if option not in _HARMLESS and setting is not None and setting is not False:
            raise UnsupportedModel(f"{name} needs {option}, which paged attention lacks")
