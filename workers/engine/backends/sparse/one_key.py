"""A stand-in for the cache of an indexer's keys, which records what an indexer multiplies."""

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from workers.engine.exceptions import UnsupportedModel

_PRODUCTS = ("matmul", "__matmul__")
_WEIGHTED = ("mul", "__mul__")


class OneKey(TorchFunctionMode):
    """Stands in for the cache of an indexer's keys in the forward inside the context. It has one
    key, and records what this key, and what products depend on it, are multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: Tensor | None = None
        self._dependent: list[Tensor] = []
        self._factors: list[Tensor] = []

    def update_compressor_states(self, _name: str, keys: Tensor) -> Tensor:
        """Take the index keys of entries, [1, entries, dim], of which there may be none."""
        return self._take(keys if keys.shape[1] else keys.new_zeros(1, 1, keys.shape[2]), 3)

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
        key = keys[..., :1, :]
        self._dependent.append(key)
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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(self._depends(each) for each in args):
            if isinstance(result, Tensor):
                self._dependent.append(result)
            self._note_factor(getattr(func, "__name__", ""), *args)
        return result

    def _note_factor(self, name: str, first: Any, second: Any = None, *_: Any) -> None:
        if name in _PRODUCTS and self._depends(second):
            self._factors.append(first)
        elif name in _WEIGHTED and isinstance(second, Tensor) and self._depends(first):
            self._factors.append(second)

    def _depends(self, value: Any) -> bool:
        return any(value is each for each in self._dependent)


class _Everywhere:
    def __init__(self, layer: OneKey) -> None:
        self._layer = layer

    def __getitem__(self, _index: int) -> OneKey:
        return self._layer
