"""The forward of a recognised decoder, computed by the C library as a whole."""

import ctypes
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workers.engine.backends.base.cache_probe import CacheProbe
from workers.engine.backends.cpu.attention import AttentionMetadata
from workers.engine.backends.cpu.kv_cache import KVCache
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.backends.cpu.layers.linear import PreparedRows, PreparedStruct
from workers.engine.backends.cpu.model_structs import ModelStructs
from workers.engine.backends.cpu.recognition.decoders import (
    ROW_BLOCK,
    DecoderParts,
    read_decoder,
)
from workers.engine.backends.cpu.recognition.parts import Unrecognised
from workers.engine.backends.cpu.structs import BatchStruct
from workers.engine.backends.recurrent.batch import Save, StateBatch, StatePiece

logger = logging.getLogger(__name__)

_BLOCK_MULTIPLE = 16
_IN_BFLOAT16 = {"normed", "queries", "attended", "activated", "gathered"}


@dataclass(frozen=True, slots=True)
class _Room:
    """The scratch sizes of MLPs and experts: the widest over all layers."""

    dense: int
    mixed: int
    experts: int
    chosen: int

    @classmethod
    def measure(cls, parts: DecoderParts) -> Self:
        mixtures = [x.experts for x in parts.layers if x.experts is not None]
        mlps = [x.dense_mlp for x in parts.layers if x.dense_mlp is not None]
        mlps += [x.shared for x in mixtures if x.shared is not None]
        sizes = [x.up.size for x in mlps]
        return cls(
            dense=max([*sizes, 0 if parts.inputs is None else parts.inputs.size]),
            mixed=max((x.mlps[0].up.size for x in mixtures), default=0),
            experts=max((len(x.mlps) for x in mixtures), default=0),
            chosen=max((x.router.chosen for x in mixtures), default=1),
        )

    @property
    def widest(self) -> int:
        return max(self.dense, self.mixed)

    def slots(self, rows: int) -> int:
        """Slots for each row and each of its experts, and the padding that is read after them."""
        return rows * self.chosen + (ROW_BLOCK if self.experts else 0)

    def count_activated(self, rows: int) -> int:
        return max(rows * self.dense, self.slots(rows) * self.mixed)


class NativeDecoder:
    """One forward of a recognised model over the paged cache.

    It reads the packed weights of the model's own layers, so it costs no memory beside tables.
    The logits are valid until the next forward.
    """

    def __init__(self, parts: DecoderParts) -> None:
        self._library: Any = load_library()
        self._parts = parts
        self._scratch: dict[str, Tensor] = {}
        self._prepares_rows = parts.head.prepares_rows
        self._prepared = PreparedRows(0, 0)
        self._room = _Room.measure(parts)
        self._widest_output = parts.widest_output
        self._widest_query = parts.widest_query
        self._widest_latent = parts.widest_latent
        self._attends_in_place = self._widest_output <= self._widest_query and all(
            kind.heads.value_dim == kind.heads.dim for kind in parts.kinds
        )
        """Whether outputs may take the place of queries."""
        inputs = parts.inputs
        self._layer_inputs = 0 if inputs is None else inputs.projection.out_features
        self._structs = ModelStructs(parts)
        self._model = self._structs.model
        self._thread_bytes = self._count_thread_bytes()

    @classmethod
    def recognise(
        cls, model: Any, probe: CacheProbe, stateful: Collection[nn.Module], max_len: int
    ) -> Self | None:
        """None if there is no library, or if the library does not support the model's form.
        ``stateful`` are the modules that keep states."""
        if load_library() is None or model.dtype != torch.bfloat16:
            return None
        try:
            return cls(read_decoder(model, probe, stateful, max_len))
        except Unrecognised as reason:
            logger.info("%s is not computed in C: %s", type(model).__name__, reason)
            return None

    @property
    def has_experts(self) -> bool:
        return self._room.experts > 0

    @staticmethod
    def takes_blocks(block_size: int) -> bool:
        """Return whether it can read a cache with blocks of this many tokens."""
        return block_size % _BLOCK_MULTIPLE == 0

    def takes(self, metadata: AttentionMetadata) -> bool:
        """Return whether this batch may bypass the model's modules."""
        return (
            isinstance(metadata.cache, KVCache)
            and self.takes_blocks(metadata.cache.block_size)
            and not metadata.run_modules
        )

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        metadata: AttentionMetadata,
        logits_rows: Tensor,
        states: StateBatch | None = None,
    ) -> Tensor:
        """As ``PagedModel``; float32 logits [len(logits_rows), vocabulary]."""
        assert isinstance(metadata.cache, KVCache)
        self._structs.bind(metadata.cache, None if states is None else states.table)
        pieces, saves = _lay_out(() if states is None else states.pieces)
        rows, num_logits = len(ids), len(logits_rows)
        padded = -(-max(rows, num_logits) // ROW_BLOCK) * ROW_BLOCK
        threads = torch.get_num_threads()
        hidden = self._model.hidden
        queries = self._buffer("queries", padded, self._widest_query)
        attended = (
            queries
            if self._attends_in_place
            else self._buffer("attended", padded, self._widest_output)
        )
        logits = self._buffer("logits", num_logits, self._parts.head.out_features)
        given = (ids, positions, metadata.slots, metadata.owners, metadata.tables, logits_rows)
        ids, positions, slots, owners, tables, logits_rows = (x.contiguous() for x in given)
        batch = BatchStruct(
            rows,
            num_logits,
            threads,
            len(pieces),
            pieces.ctypes.data,
            saves.ctypes.data,
            *(x.data_ptr() for x in (ids, positions, slots, owners, tables)),
            tables.shape[1],
            logits_rows.data_ptr(),
            logits.data_ptr(),
            self._buffer("residual", padded, hidden).data_ptr(),
            self._buffer("branch", padded, hidden).data_ptr(),
            self._buffer("normed", padded, max(hidden, self._widest_latent)).data_ptr(),
            self._buffer("projected", padded, max(hidden, self._model.width)).data_ptr(),
            self._buffer("layer_inputs", padded, self._layer_inputs).data_ptr(),
            queries.data_ptr(),
            attended.data_ptr(),
            self._buffer("activated", 1, self._room.count_activated(padded)).data_ptr(),
            self._prepare_rows(padded),
            *self._experts_buffers(padded),
            self._buffer("room", threads, self._thread_bytes // 4).data_ptr(),
        )
        self._library.quire_forward(ctypes.byref(self._model), ctypes.byref(batch))
        return logits

    def _count_thread_bytes(self) -> int:
        """Return the scratch of each thread."""
        return int(self._library.quire_thread_room(ctypes.byref(self._model)))

    def _buffer(self, name: str, rows: int, columns: int) -> Tensor:
        """Memory that is kept from step to step, as large as the largest step so far required."""
        size = rows * columns
        if name not in self._scratch or self._scratch[name].numel() < size:
            dtype = torch.bfloat16 if name in _IN_BFLOAT16 else torch.float32
            self._scratch[name] = torch.zeros(size, dtype=dtype)
        return self._scratch[name][:size].view(rows, columns)

    def _prepare_rows(self, rows: int) -> PreparedStruct:
        if not self._prepares_rows:
            return PreparedStruct()
        rows = self._room.slots(rows)
        if self._prepared.rows < rows:
            sizes = (self._model.hidden, self._widest_latent, self._widest_output)
            self._prepared = PreparedRows(rows, max(*sizes, self._room.widest))
        return self._prepared.struct

    def _experts_buffers(self, rows: int) -> list[int | None]:
        """Return the scratch of experts: the fields from ``routing`` to ``gathered``."""
        room = self._room
        if not room.experts:
            return [None] * 7
        slots = room.slots(rows)
        sizes = {
            "routing": (rows, room.experts),
            "chosen": (slots, 1),
            "expert_weights": (slots, 1),
            "expert_starts": (room.experts + 2, 1),
            "routes": (slots, 2),
            "shared_routes": (rows, 2),
            "gathered": (slots, self._model.hidden),
        }
        return [self._buffer(name, *size).data_ptr() for name, size in sizes.items()]


def _lay_out(pieces: Iterable[StatePiece]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the arrays of ``StatePiece`` and ``Save`` of kernels/model.h."""
    laid_out: list[tuple[int, ...]] = []
    saves: list[Save] = []
    for piece in pieces:
        first = len(saves)
        saves += sorted(piece.saves)
        laid_out.append((piece.row, piece.start, piece.size, piece.is_fresh, first, len(saves)))
    return np.array(laid_out, dtype=np.int64), np.array(saves, dtype=np.int64)
