"""The scheduler's decision to tensors, and through the model to logits."""

import os
import time
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.engine.config import EngineConfig
from workers.engine.cpu.thread_tuner import ThreadTuner
from workers.engine.model.attention import AttentionMetadata, DecodeGroup, PrefillChunk
from workers.engine.model.attention_backend import Metadata
from workers.engine.model.kv_cache import KVCache
from workers.engine.model.loader import LoadedModel
from workers.engine.model.lora import AdapterRows
from workers.engine.scheduling.block_pool import NULL_BLOCK
from workers.engine.scheduling.scheduler import SchedulerOutput
from workers.engine.sequence import Piece, Sequence

_MAX_PADDING = 1024
"""Cache slots that a decode group may read for nothing before another group is cheaper."""

_SHORT_CHUNK = 8
"""Up to so many tokens that follow cached ones attend faster as rows of a decode group each than
as a chunk with a product of its own."""

_MEMORY_SHARE = 0.25
"""Of the memory that is free at start, for a KV cache whose size is not configured."""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A flat batch [tokens]: single tokens first, those with the longest context first, then
    chunks of several.

    ``layout`` says whose tokens they are, ``sampled[i]`` continues from the logits of row
    ``logits_rows[i]``. The logits rows after those score prompts, as ``scored`` says.

    ``apart`` is a second batch of the same step, or None: the sequences that the model's modules
    must compute, where the C forward computes the others.
    """

    input_ids: Tensor
    position_ids: Tensor
    metadata: Metadata
    logits_rows: Tensor
    layout: list[Piece]
    sampled: list[Sequence]
    scored: list[Piece]
    adapter_rows: list[AdapterRows]
    apart: "ModelInput | None" = None

    @property
    def is_recorded(self) -> bool:
        """Whether the modules of the model are watched while it runs."""
        return any(seq.record is not None for seq, _, _ in self.layout)

    @property
    def all_sampled(self) -> list[Sequence]:
        """The sequences that this step samples, in the order of its logits."""
        return self.sampled if self.apart is None else self.sampled + self.apart.sampled

    @property
    def all_scored(self) -> list[Piece]:
        """The prompt tokens that this step scores, in the order of its logits."""
        return self.scored if self.apart is None else self.scored + self.apart.scored


class ModelRunner:
    """Owns the KV cache and mirrors the block tables of running sequences, one row per slot."""

    looks_ahead = False
    """A CPU has nothing to do meanwhile."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        self._model = loaded.model
        self._adapters = loaded.adapters
        fixed = config.num_threads is not None
        self._tuner = None if fixed else ThreadTuner(torch.get_num_threads())
        self._block_size = config.block_size
        num_blocks = _num_blocks(loaded, config)
        self.cache = KVCache(loaded.layer_shapes, num_blocks, config.block_size, loaded.dtype)
        table_width = -(-loaded.max_model_len // config.block_size)
        self._block_tables = np.full((config.max_num_seqs, table_width), NULL_BLOCK, dtype=np.int64)

    def prepare(self, output: SchedulerOutput, last_tokens: Tensor | None = None) -> ModelInput:
        """Lay out a step. Does not change the sequences."""
        assert last_tokens is None, "steps are launched ahead on a GPU only"
        if output.tainted:
            self.cache.scrub(output.tainted)
        for seq in (*output.admitted, *output.grown):
            table = self._block_tables[seq.slot]
            table[: len(seq.block_ids)] = seq.block_ids
            table[len(seq.block_ids) :] = NULL_BLOCK
        if self._model.native is None:
            return self._lay_out(output.chunks)
        # The modules round otherwise than the C forward: a sequence must not change because
        # another one of its step needs them.
        bypassing = [chunk for chunk in output.chunks if not self._needs_modules(chunk[0])]
        others = [chunk for chunk in output.chunks if self._needs_modules(chunk[0])]
        if not bypassing or not others:
            return self._lay_out(output.chunks)
        return replace(self._lay_out(bypassing), apart=self._lay_out(others))

    def _needs_modules(self, seq: Sequence) -> bool:
        return seq.record is not None or self._adapters.in_use([seq])

    def _lay_out(self, chunks: list[tuple[Sequence, int]]) -> ModelInput:
        # Sorted by length, neighbours pad each other least; all grow by one per step, so the
        # order of rows lasts until somebody joins or leaves.
        singles, longer = _split(chunks)
        singles.sort(key=lambda piece: -piece[1])
        pieces = singles + longer
        sequences = [seq for seq, _, _ in pieces]
        first = np.array([position for _, position, _ in pieces])
        sizes = np.array([size for _, _, size in pieces])
        ends = sizes.cumsum()
        positions = np.arange(ends[-1]) + np.repeat(first - (ends - sizes), sizes)
        tables = self._block_tables[[seq.slot for seq in sequences]]
        owner = np.repeat(np.arange(len(sequences)), sizes)
        size = self._block_size
        slots = tables[owner, positions // size] * size + positions % size
        adapter_rows = self._adapters.rows_of(sequences, owner)
        sampled = [i for i, (seq, at, n) in enumerate(pieces) if at + n == seq.num_tokens]
        scored, scored_rows = scored_pieces(pieces)
        return ModelInput(
            input_ids=torch.tensor(_token_ids(pieces)),
            position_ids=torch.from_numpy(positions),
            metadata=AttentionMetadata(
                cache=self.cache,
                slots=torch.from_numpy(slots),
                groups=self._groups(first[: len(singles)], tables),
                chunks=self._prefill_chunks(first, ends, tables, len(singles)),
                tables=torch.from_numpy(tables),
                owners=torch.from_numpy(owner),
                through_modules=any(map(self._needs_modules, sequences)),
            ),
            logits_rows=torch.from_numpy(np.concatenate([ends[sampled] - 1, scored_rows])),
            layout=pieces,
            sampled=[sequences[i] for i in sampled],
            scored=scored,
            adapter_rows=adapter_rows,
        )

    def forward(self, model_input: ModelInput) -> Tensor:
        """Logits [rows, vocabulary], in the model's dtype or float32, of ``all_sampled`` and then
        of ``all_scored``; valid until the next forward."""
        if self._tuner is not None and self._tuner.num_threads != torch.get_num_threads():
            torch.set_num_threads(self._tuner.num_threads)
        start = time.perf_counter()
        logits, num_tokens = self._run(model_input), len(model_input.input_ids)
        if (apart := model_input.apart) is not None:
            others = self._run(apart).float()
            own, theirs = len(model_input.sampled), len(apart.sampled)
            logits = torch.cat([logits[:own], others[:theirs], logits[own:], others[theirs:]])
            num_tokens += len(apart.input_ids)
        if self._tuner is not None:
            self._tuner.record(num_tokens, time.perf_counter() - start)
        return logits

    def _run(self, model_input: ModelInput) -> Tensor:
        with self._adapters.active(model_input.adapter_rows):
            return self._model(
                model_input.input_ids,
                model_input.position_ids,
                model_input.metadata,
                model_input.logits_rows,
            )

    def _groups(self, positions: NDArray[np.int64], tables: NDArray[np.int64]) -> list[DecodeGroup]:
        num_blocks = positions // self._block_size + 1
        return [
            DecodeGroup(
                start=start,
                end=end,
                blocks=torch.from_numpy(tables[start:end, : num_blocks[start]]),
                positions=torch.from_numpy(positions[start:end]),
            )
            for start, end in pairwise(_group_bounds(num_blocks.tolist(), self._block_size))
        ]

    def _prefill_chunks(
        self,
        first: NDArray[np.int64],
        ends: NDArray[np.int64],
        tables: NDArray[np.int64],
        num_singles: int,
    ) -> list[PrefillChunk]:
        starts = np.concatenate([[0], ends[:-1]])
        chunks = []
        for i in range(num_singles, len(ends)):
            num_blocks = (first[i] + ends[i] - starts[i] - 1) // self._block_size + 1
            blocks = torch.from_numpy(tables[i : i + 1, :num_blocks])
            chunks.append(PrefillChunk(int(starts[i]), int(ends[i]), int(first[i]), blocks))
        return chunks


def scored_pieces(layout: list[Piece]) -> tuple[list[Piece], NDArray[np.int64]]:
    """Of a flat batch laid out like this, the positions that score a prompt, and their rows."""
    pieces: list[Piece] = []
    rows = [np.empty(0, dtype=np.int64)]
    row = 0
    for seq, position, size in layout:
        if seq.logprobs is not None and seq.logprobs.prompt is not None:
            first, count = seq.logprobs.prompt.due(position, size)
            if count:
                pieces.append((seq, first, count))
                rows.append(np.arange(count) + (row + first - position))
        row += size
    return pieces, np.concatenate(rows)


def _split(chunks: list[tuple[Sequence, int]]) -> tuple[list[Piece], list[Piece]]:
    """Single tokens, and chunks of several; a short run of forced tokens becomes single ones. All
    keys of a step are stored before any token attends, so each sees those before it."""
    singles: list[Piece] = []
    longer: list[Piece] = []
    for seq, size in chunks:
        first = seq.num_computed
        if size == 1 or (first > 0 and size <= _SHORT_CHUNK):
            singles.extend((seq, first + i, 1) for i in range(size))
        else:
            longer.append((seq, first, size))
    return singles, longer


def _token_ids(pieces: list[Piece]) -> list[int]:
    token_ids: list[int] = []
    for seq, first, size in pieces:
        if size == 1:
            token_ids.append(seq.token_ids[first])
        else:
            token_ids.extend(seq.token_ids[first : first + size])
    return token_ids


def _group_bounds(num_blocks: list[int], block_size: int) -> list[int]:
    """Where to cut rows, longest first, so that no group pads more than ``_MAX_PADDING``."""
    bounds, padding = [0], 0
    for row, blocks in enumerate(num_blocks):
        padding += (num_blocks[bounds[-1]] - blocks) * block_size
        if padding > _MAX_PADDING:
            bounds.append(row)
            padding = 0
    if num_blocks:
        bounds.append(len(num_blocks))
    return bounds


def _num_blocks(loaded: LoadedModel, config: EngineConfig) -> int:
    """As many blocks as configured or as a share of free memory holds, and never more than the
    longest sequences in every slot could fill."""
    block_bytes = config.block_size * sum(
        shape.token_bytes(loaded.dtype) for shape in loaded.layer_shapes.values()
    )
    available = config.kv_cache_bytes
    if available is None:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        available = int(free * _MEMORY_SHARE)
    useful = config.max_num_seqs * -(-loaded.max_model_len // config.block_size)
    num_blocks = min(available // block_bytes, useful)
    if num_blocks < 1:
        raise ValueError(f"kv_cache_bytes must hold a block of {block_bytes} bytes at least")
    return 1 + num_blocks
