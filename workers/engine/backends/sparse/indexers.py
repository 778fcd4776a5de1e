"""Runs attention layers that choose their tokens by an indexer on flat batches ("DeepSeek-V3.2",
2025).

Nothing here knows an architecture. An indexer runs as it is, but on a cache that has one key: what
it multiplies by this key are its queries, and what it multiplies by these products are the weights
of its heads. With them, the tokens of each sequence are scored over the paged index keys.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from workers.engine.backends.base.attention import current_metadata, is_over_pages
from workers.engine.backends.sparse.latents import Latents
from workers.engine.backends.sparse.rows import find_layer
from workers.engine.backends.sparse.selection import Selection, choose_tokens
from workers.engine.exceptions import UnsupportedModel

_CACHE, _MASK = "past_key_values", "attention_mask"
_PRODUCTS = ("matmul", "__matmul__")


def use_pages(model: nn.Module) -> None:
    """Let the indexers of a model, if it has any, and the latents of its attention layers use the
    pages in a forward over them. Any other forward computes as before."""
    layers: list[Any] = [layer for layer in model.modules() if hasattr(layer, "expand_kv")]
    indexers = [layer.indexer for layer in layers if _has_indexer(layer)]
    if not indexers:
        return
    for layer in layers:
        if getattr(layer.kv_b_proj, "bias", None) is None:
            layer.expand_kv = Latents(layer)
            layer.register_forward_pre_hook(_give_mask, with_kwargs=True)
    for indexer in indexers:
        indexer.forward = _PagedIndexer(indexer)


def _has_indexer(layer: Any) -> bool:
    indexer = getattr(layer, "indexer", None)
    return isinstance(indexer, nn.Module) and hasattr(indexer, "index_topk")


def find_latents(layer: nn.Module) -> Latents | None:
    """Return the latents that an attention layer caches; None if it caches keys and values."""
    latents = vars(layer).get("expand_kv")
    return latents if isinstance(latents, Latents) else None


def _give_mask(_layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    """Layers cut the mask for their indexer, and a forward over pages has none."""
    if is_over_pages() and kwargs.get(_MASK) is None:
        kwargs[_MASK] = torch.zeros(1, 1, 1, 1, device=kwargs["hidden_states"].device)
    return args, kwargs


class _PagedIndexer:
    """The forward of an indexer: its own, or the choice among the tokens in the pages."""

    def __init__(self, indexer: Any) -> None:
        self._indexer = indexer
        self._own = indexer.forward
        self._signature = inspect.signature(indexer.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not is_over_pages():
            return self._own(*args, **kwargs)
        given = self._signature.bind(*args, **kwargs)
        keys = _OneKey()
        given.arguments[_CACHE] = keys
        hidden = next(each for each in given.arguments.values() if isinstance(each, Tensor))
        given.arguments[_MASK] = torch.zeros(1, 1, 1, device=hidden.device)
        self._own(*given.args, **given.kwargs)
        return self._choose(keys)

    def _choose(self, taken: "_OneKey") -> Selection:
        keys, (query, weights) = taken.keys, taken.factors
        metadata = current_metadata()
        layer = find_layer(metadata, self._indexer)
        if layer is None:
            metadata.cache.note_index(self._indexer, keys)
            return Selection([])
        stored = keys[:, None].to(layer.tokens.dtype)
        layer.write(metadata.slots, stored, stored[..., :0])
        groups = metadata.row_groups(layer.block_size)
        return choose_tokens(query, weights, layer, groups, self._indexer.index_topk)


class _OneKey:
    """Stands in for the cache of an indexer's keys, and records what they are multiplied by."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._factors: list[Tensor] = []

    def update_indexer(self, keys: Tensor, *_: Any) -> Tensor:
        """Take the index keys of a flat batch, [1, tokens, dim]."""
        if self._keys is not None or keys.dim() != 3 or len(keys) != 1:
            raise UnsupportedModel("an indexer caches other keys than one per token")
        self._keys = keys[0]
        key: _Key = keys[:, :1].as_subclass(_Key)
        key.factors = self._factors
        return key

    @property
    def keys(self) -> Tensor:
        """The index keys, [tokens, dim]."""
        if self._keys is None:
            raise UnsupportedModel("an indexer caches no keys")
        return self._keys

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """Queries [tokens, heads, dim] and weights of the heads [tokens, heads]."""
        if [factor.dim() for factor in self._factors] != [4, 4]:
            raise UnsupportedModel("an indexer scores in an unknown way")
        query, weights = (factor[0] for factor in self._factors)
        return query, weights[:, 0]


class _Key(Tensor):
    """A tensor that depends on the one key, and records what products multiply it by."""

    factors: list[Tensor] | None = None
    """None for what no product depends on, such as chosen indices."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        factors = next((each.factors for each in args if isinstance(each, _Key)), None)
        if isinstance(result, _Key):
            result.factors = factors
        is_product = getattr(func, "__name__", "") in _PRODUCTS
        if is_product and factors is not None and isinstance(args[1], _Key):
            factors.append(args[0])
        return result
