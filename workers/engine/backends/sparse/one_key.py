"""A stand-in for the cache of an indexer's keys, which records what an indexer multiplies."""

from typing import Any

from torch import Tensor

from workers.engine.exceptions import UnsupportedModel

_PRODUCTS = ("matmul", "__matmul__")


class OneKey:
    """Stands in for the cache of an indexer's keys, and records what they are multiplied by."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._factors: list[Tensor] = []

    def update_indexer(self, keys: Tensor, *_: Any) -> Tensor:
        """Take the index keys of a flat batch, [1, tokens, dim]."""
        return self._take(keys, 3)

    @property
    def layers(self) -> "_Everywhere":
        """The same stand-in as the cache of any layer."""
        return _Everywhere(self)

    def update_index(self, keys: Tensor) -> Tensor:
        """Take the index keys of a flat batch, [1, 1, tokens, dim]."""
        return self._take(keys, 4)

    def _take(self, keys: Tensor, dims: int) -> Tensor:
        if self._keys is not None or keys.dim() != dims or keys.shape[:-2].numel() != 1:
            raise UnsupportedModel("an indexer caches other keys than one per token")
        self._keys = keys.flatten(0, -2)
        key: _Key = keys[..., :1, :].as_subclass(_Key)
        key.factors = self._factors
        return key

    @property
    def keys(self) -> Tensor:
        """The index keys, [tokens, dim]."""
        if self._keys is None:
            raise UnsupportedModel("an indexer caches no keys")
        return self._keys

    def factors(self, count: int) -> list[Tensor]:
        """Return what was multiplied, which must be ``count`` tensors of four dimensions: the
        queries first, then what multiplies their products."""
        if [factor.dim() for factor in self._factors] != [4] * count:
            raise UnsupportedModel("an indexer scores in an unknown way")
        return self._factors


class _Everywhere:
    def __init__(self, layer: OneKey) -> None:
        self._layer = layer

    def __getitem__(self, _index: int) -> OneKey:
        return self._layer


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
