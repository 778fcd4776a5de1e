"""Runs attention layers that choose their tokens by an indexer on flat batches ("DeepSeek-V3.2",
2025).

Nothing here knows an architecture. An indexer runs as it is, but on a cache that has one key: what
it multiplies by this key are its queries, and what it multiplies by these products are the weights
of its heads. With them, the tokens of each sequence are scored over the paged index keys.

An indexer that chooses spans of tokens (MiniMax M3) has no such weights: each of its heads chooses
for itself.
"""

import inspect
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from workers.engine.backends.base.attention import current_metadata, is_over_pages
from workers.engine.backends.sparse.latents import Latents
from workers.engine.backends.sparse.one_key import OneKey
from workers.engine.backends.sparse.rows import FlatLayer, RowGroup, find_layer
from workers.engine.backends.sparse.selection import Selection, choose_tokens
from workers.engine.backends.sparse.spans import SpanRule, SpanSelection, choose_spans

_CACHE, _MASK, _POSITIONS = "past_key_values", "attention_mask", "position_ids"


def use_pages(model: nn.Module) -> None:
    """Let the indexers of a model, if it has any, and the latents of its attention layers use the
    pages in a forward over them. Any other forward computes as before."""
    for indexer in [module for module in model.modules() if _chooses_spans(module)]:
        indexer.forward = _PagedSpanIndexer(indexer)
    layers: list[Any] = [layer for layer in model.modules() if hasattr(layer, "expand_kv")]
    indexers = [layer.indexer for layer in layers if _has_indexer(layer)]
    if not indexers:
        return
    for layer in layers:
        if getattr(layer.kv_b_proj, "bias", None) is None:
            layer.expand_kv = Latents(layer)
            layer.register_forward_pre_hook(_give_mask, with_kwargs=True)
    for indexer in indexers:
        indexer.forward = _PagedTokenIndexer(indexer)


def _chooses_spans(module: nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("topk_blocks", "local_blocks", "block_size"))


def _has_indexer(layer: Any) -> bool:
    indexer = getattr(layer, "indexer", None)
    return isinstance(indexer, nn.Module) and hasattr(indexer, "index_topk")


def find_latents(layer: nn.Module) -> Latents | None:
    """Return the latents that an attention layer caches; None if it caches keys and values."""
    latents = vars(layer).get("expand_kv")
    return latents if isinstance(latents, Latents) else None


def pop_spans(options: dict[str, Any]) -> SpanSelection | None:
    """Take the spans that an indexer has chosen out of an attention function's options."""
    if not isinstance(options.get("block_indices"), SpanSelection):
        return None
    spans: SpanSelection = options.pop("block_indices")
    return spans


def _give_mask(_layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    """Layers cut the mask for their indexer, and a forward over pages has none."""
    if is_over_pages() and kwargs.get(_MASK) is None:
        kwargs[_MASK] = torch.zeros(1, 1, 1, 1, device=kwargs["hidden_states"].device)
    return args, kwargs


class _PagedIndexer(ABC):
    """The forward of an indexer: its own, or the choice among the tokens in the pages."""

    def __init__(self, indexer: Any) -> None:
        self._indexer = indexer
        self._own = indexer.forward
        self._signature = inspect.signature(indexer.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not is_over_pages():
            return self._own(*args, **kwargs)
        given = self._signature.bind(*args, **kwargs)
        key = given.arguments[_CACHE] = OneKey()
        self._fit_one_key(given.arguments)
        with key:
            self._own(*given.args, **given.kwargs)
        return self._choose(key)

    @abstractmethod
    def _fit_one_key(self, arguments: dict[str, Any]) -> None:
        """Change what the indexer would hold against the number of its keys."""

    @abstractmethod
    def _choose(self, taken: OneKey) -> Any:
        """Return what each row chooses, by what the indexer multiplied its one key by."""

    def _store(self, keys: Tensor) -> tuple[FlatLayer, list[RowGroup]] | None:
        """Store the index keys [tokens, dim]; return the pages and the rows that are to choose.
        None while the model is probed."""
        metadata = current_metadata()
        layer = find_layer(metadata, self._indexer)
        if layer is None:
            metadata.cache.note_index(self._indexer, keys)
            return None
        stored = keys[:, None].to(layer.tokens.dtype)
        layer.write(metadata.slots, stored, stored[..., :0])
        return layer, metadata.row_groups(layer.block_size)


class _PagedTokenIndexer(_PagedIndexer):
    def _fit_one_key(self, arguments: dict[str, Any]) -> None:
        hidden = next(each for each in arguments.values() if isinstance(each, Tensor))
        arguments[_MASK] = torch.zeros(1, 1, 1, device=hidden.device)

    def _choose(self, taken: OneKey) -> Selection:
        keys, (query, weights) = taken.keys, taken.factors(2)
        if (pages := self._store(keys)) is None:
            return Selection([])
        return choose_tokens(query[0], weights[0, :, 0], *pages, self._indexer.index_topk)


class _PagedSpanIndexer(_PagedIndexer):
    def _fit_one_key(self, arguments: dict[str, Any]) -> None:
        # By these it finds the span of a token, among those of its keys. They rotate nothing.
        arguments[_POSITIONS] = torch.zeros_like(arguments[_POSITIONS])

    def _choose(self, taken: OneKey) -> SpanSelection:
        keys, [query] = taken.keys, taken.factors(1)
        indexer = self._indexer
        rule = SpanRule(indexer.block_size, indexer.topk_blocks, indexer.local_blocks)
        if (pages := self._store(keys)) is None:
            return SpanSelection(rule.size, [])
        return choose_spans(query[0].transpose(0, 1), *pages, rule)
