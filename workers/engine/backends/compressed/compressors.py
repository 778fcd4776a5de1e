"""Runs attention layers that make one key of several tokens on flat batches (DeepSeek-AI,
"DeepSeek-V4", 2026, section 2.3).

Nothing here knows an architecture. A compressor runs as it is, but on a stand-in for its cache: it
hands over what it projected of the tokens of a flat batch, and gets the windows that end in it,
whose sequences may be any. What it makes of them are entries, which are stored in pages. Its
indexer, if it has one, runs likewise, and on one key for what it scores (``sparse/one_key.py``).
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from workers.engine.backends.base.attention import current_metadata, is_over_pages
from workers.engine.backends.base.lora import Adapters
from workers.engine.backends.compressed.lines import EntryGroup, find_entries, find_in_block
from workers.engine.backends.compressed.windows import ClosedWindows, find_windows
from workers.engine.backends.recurrent.batch import StateBatch
from workers.engine.backends.recurrent.states import StateKey, StateShape, StateShapes
from workers.engine.backends.sparse.one_key import OneKey
from workers.engine.backends.sparse.rows import FlatLayer, RowMetadata, find_layer
from workers.engine.backends.sparse.selection import Selection, choose_tokens
from workers.engine.core.layer_shape import LayerShape
from workers.engine.exceptions import UnsupportedModel

_CACHE = "past_key_values"
_ENTRIES, _INDEX = "compressor", "indexer"
"""The names by which a compressor and its indexer call the parts of their cache."""


class _Step:
    """A flat batch as compressors see it: the pieces of sequences, and what follows from them for
    all layers alike."""

    def __init__(self, batch: StateBatch) -> None:
        self.batch = batch
        self._windows: dict[tuple[int, int], ClosedWindows] = {}
        self._groups: dict[tuple[int, bool], list[EntryGroup]] = {}

    def windows(self, rate: int, reach: int) -> ClosedWindows:
        if (found := self._windows.get((rate, reach))) is None:
            found = find_windows(self.batch.pieces, rate, reach, self.batch.table.device)
            self._windows[rate, reach] = found
        return found

    def groups(self, metadata: RowMetadata, layer: "EntryLayer") -> list[EntryGroup]:
        """Return the rows that attend together, as they see the entries of a layer."""
        shape = layer.shape
        assert shape.rate is not None
        if (groups := self._groups.get((shape.rate, shape.has_tokens))) is None:
            rows = metadata.row_groups(layer.block_size)
            groups = [find_entries(group, shape) for group in rows]
            self._groups[shape.rate, shape.has_tokens] = groups
        return groups


_current: ContextVar[_Step] = ContextVar("the flat batch of the forward that runs")


class EntryLayer(FlatLayer, Protocol):
    """A layer's pages with one head, whose blocks have lines for entries."""

    shape: LayerShape
    num_lines: int


class _Noted(NamedTuple):
    """What a first forward showed of a part of a compressor: the numbers that it projects of a
    token, whether it reads the window before, and their dtype."""

    size: int
    overlaps: bool
    dtype: torch.dtype


class PagedCompressor:
    """Stands for the forward of an attention layer's compressor. In a forward over pages, it
    returns no entries, but stores them, and notes what the rows of the batch choose."""

    def __init__(self, attention: nn.Module) -> None:
        module: Any = attention.compressor
        self.module: nn.Module = module
        self.rate: int = module.compress_rate
        self.attention = attention
        self.indexer: Any = getattr(module, _INDEX, None)
        self._own: Callable[..., Any] = module.forward
        self._signature = inspect.signature(module.forward)
        self.noted: dict[str, _Noted] = {}
        """By the part's name."""
        self.selection: Selection | None = None
        """The entries that the rows of the forward that runs have chosen, if they choose."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not is_over_pages():
            return self._own(*args, **kwargs)
        metadata = current_metadata()
        is_probe = find_layer(metadata, self.attention) is None
        given = self._signature.bind(*args, **kwargs)
        with ExitStack() as scoring:
            make = _ProbedCache if is_probe else _PagedCache
            cache = given.arguments[_CACHE] = make(self, metadata, scoring)
            result = self._own(*given.args, **given.kwargs)
        self.selection = self._choose(cache)
        return result

    def states(self) -> dict[StateKey, StateShape]:
        """Return the shapes of the rings: of the compressor, and of its indexer."""
        return {
            StateKey("window", number): StateShape((self.reach(name), noted.size), noted.dtype)
            for number, (name, noted) in enumerate(self.noted.items())
        }

    def reach(self, name: str) -> int:
        """Return from how many tokens an entry is made."""
        return self.rate * (2 if self.noted[name].overlaps else 1)

    def state_key(self, name: str) -> StateKey:
        return StateKey("window", list(self.noted).index(name))

    def find_pages(self, name: str, metadata: RowMetadata) -> EntryLayer:
        """Return the pages for a part's entries."""
        module = self.attention if name == _ENTRIES else self.indexer
        layer: EntryLayer = metadata.cache.layers[module]
        return layer

    def entry_groups(self, metadata: RowMetadata) -> list[EntryGroup]:
        """Return the rows that attend together, as they see this layer's entries."""
        return _current.get().groups(metadata, self.find_pages(_ENTRIES, metadata))

    def _choose(self, cache: "_Cache") -> Selection | None:
        if self.indexer is None:
            return None
        query, weights = cache.scored.factors(2)
        if isinstance(cache, _ProbedCache):
            return None
        layer = self.find_pages(_INDEX, cache.metadata)
        groups = _current.get().groups(cache.metadata, layer)
        count = self.indexer.index_topk
        return choose_tokens(query[0], weights[0].flatten(1), layer, list(groups), count)


class _Cache:
    """What stands for the cache of a compressor in one forward."""

    def __init__(self, compressor: PagedCompressor, metadata: Any, scoring: ExitStack) -> None:
        self._compressor = compressor
        self.metadata = metadata
        self.scored = OneKey()
        self._scoring = scoring

    def _give_key(self, name: str, entries: Tensor) -> Tensor:
        """Return what an indexer scores. What it multiplies from now on is recorded."""
        self._scoring.enter_context(self.scored)
        return self.scored.update_compressor_states(name, entries)

    @property
    def layers(self) -> "_Cache":
        return self

    def __getitem__(self, _layer: int) -> "_Cache":
        return self


class _ProbedCache(_Cache):
    """Notes what a compressor projects and makes, of one window of zeros."""

    def store_compression_weights(
        self, name: str, kv: Tensor, gate: Tensor
    ) -> tuple[Tensor, Tensor, int]:
        if name not in (_ENTRIES, _INDEX) or kv.dim() != 3 or kv.shape[0] != 1:
            raise UnsupportedModel(f"a compressor caches {name!r}, which is not known")
        self._compressor.noted[name] = _Noted(kv.shape[2] + gate.shape[2], False, kv.dtype)
        rate = self._compressor.rate
        return kv.new_zeros(1, rate, kv.shape[2]), gate.new_zeros(1, rate, gate.shape[2]), 0

    def update_overlap_state(self, name: str, *_: Any) -> tuple[None, None]:
        noted = self._compressor.noted
        noted[name] = noted[name]._replace(overlaps=True)
        return None, None

    def update_compressor_states(self, name: str, entries: Tensor) -> Tensor:
        if name == _ENTRIES:
            return entries[:, :0]
        self.metadata.cache.note_index(self._compressor.indexer, entries[0], self._compressor.rate)
        return self._give_key(name, entries)


class _PagedCache(_Cache):
    """Gives a compressor the windows that end in a flat batch, one after the other, and stores what
    it makes of them.

    Where an entry is made of two windows, each is given after the one before it, as if all of them
    followed each other: of these, every second entry is right, and the others are dropped.
    """

    def store_compression_weights(
        self, name: str, kv: Tensor, gate: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        compressor, step = self._compressor, _current.get()
        rate, reach = compressor.rate, compressor.reach(name)
        windows = step.windows(rate, reach)
        states = step.batch.table.get_states(compressor.module)[compressor.state_key(name)]
        projected = torch.cat([kv[0], gate[0]], dim=1)
        tokens = windows.gather(projected, states).flatten(0, 1)
        windows.keep(projected, states)
        values, gates = tokens[:, : kv.shape[2]], tokens[:, kv.shape[2] :]
        gates = gates.index_fill(0, windows.missing, -torch.inf)
        count = len(windows.numbers) * (reach // rate)
        places = windows.numbers.repeat_interleave(reach // rate) * rate
        # It adds the position of a window among these.
        first = places - torch.arange(count, device=places.device) * rate
        return values[None], gates[None], first

    def update_overlap_state(self, *_: Any) -> tuple[None, None]:
        return None, None

    def update_compressor_states(self, name: str, entries: Tensor) -> Tensor:
        compressor = self._compressor
        rate, reach = compressor.rate, compressor.reach(name)
        windows = _current.get().windows(rate, reach)
        made = entries[:, reach // rate - 1 :: reach // rate]
        layer = compressor.find_pages(name, self.metadata)
        size = layer.block_size
        blocks = self.metadata.slots[windows.last] // size
        within = layer.shape.num_token_lines(size) + find_in_block(windows.numbers, rate, size)
        lines = blocks * layer.num_lines + within
        layer.tokens.index_copy_(0, lines, made[0].to(layer.tokens.dtype))
        return made[:, :0] if name == _ENTRIES else self._give_key(name, made)


class Compressors:
    """The compressors of one model, whose rings are the states of its sequences."""

    def __init__(self, compressors: list[PagedCompressor]) -> None:
        self.shapes: StateShapes = {each.module: each.states() for each in compressors}
        self.continues = True

    def wrap(self, _adapters: Adapters) -> None:
        """They are wrapped since the model was made, and compute all tokens of a batch at once, as
        adapters of other modules do."""

    @contextmanager
    def active(self, batch: StateBatch) -> Iterator[None]:
        """Compute the windows of ``batch`` in the forward inside the context."""
        token = _current.set(_Step(batch))
        try:
            yield
        finally:
            _current.reset(token)


def wrap_compressors(model: nn.Module) -> None:
    """Let the compressors of a model, if it has any, use the pages in a forward over them. Any
    other forward computes as before."""
    for layer in model.modules():
        compressor: Any = getattr(layer, "compressor", None)
        if isinstance(compressor, nn.Module) and hasattr(compressor, "compress_rate"):
            compressor.forward = PagedCompressor(layer)


def find_compressor(layer: nn.Module) -> PagedCompressor | None:
    """Return the compressor of an attention layer, if it has one."""
    compressor = getattr(layer, "compressor", None)
    forward = None if compressor is None else vars(compressor).get("forward")
    return forward if isinstance(forward, PagedCompressor) else None


def find_compressors(model: nn.Module, run: Callable[[], object]) -> Compressors | None:
    """Return the compressors of a model, or None if it has none. ``run`` runs a forward of a few
    tokens over pages. Raises UnsupportedModel."""
    found = [each for layer in model.modules() if (each := find_compressor(layer)) is not None]
    if not found:
        return None
    try:
        run()
    except UnsupportedModel:
        raise
    except Exception as error:  # the stand-in answers less than a cache
        raise UnsupportedModel(
            f"{type(model).__name__} has compressors that cannot be batched: {error!r}"
        ) from error
    return Compressors(found)
