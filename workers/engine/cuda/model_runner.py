"""Runs a step of the scheduler on the GPU: tokens to logits."""

import logging

import numpy as np
import torch
from torch import Tensor

from workers.engine.config import EngineConfig
from workers.engine.cuda.graphs import DecodeGraphs
from workers.engine.cuda.inputs import (
    POSITION,
    TABLE,
    TOKEN,
    DecodeTable,
    decode_metadata,
    decode_table,
    mixed_metadata,
    slots,
    to_device,
)
from workers.engine.cuda.kv_cache import TokenMajorCache
from workers.engine.cuda.memory import kv_cache_budget
from workers.engine.model.loader import LoadedModel
from workers.engine.model.runner import ModelInput, scored_pieces
from workers.engine.scheduling.block_pool import NULL_BLOCK
from workers.engine.scheduling.scheduler import SchedulerOutput
from workers.engine.sequence import Piece, Sequence

logger = logging.getLogger(__name__)


_MAX_DECODE_TOKENS = 8
"""Tokens of a sequence beyond the cached ones that are rows of a decode table each, as those are
which a grammar forced; a longer chunk is prefilled."""


class CudaModelRunner:
    """The GPU's counterpart of ``ModelRunner``: launches a step and returns before it has run.

    A step of few tokens per sequence is laid out as a decode table and replayed as a graph, where
    the kernel takes every layer and no row has an adapter; all else runs eagerly, as a flat batch.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        self._loaded = loaded
        self._adapters = loaded.adapters
        self._device = loaded.device
        self._block_size = config.block_size
        self.looks_ahead = config.async_scheduling
        self._max_k = loaded.max_model_len
        width = -(-loaded.max_model_len // config.block_size)
        self._block_tables = np.full((config.max_num_seqs, width), NULL_BLOCK, dtype=np.int64)
        self.cache = self._make_cache(self._num_blocks(config, width))
        self._graphs: DecodeGraphs | None = None
        if self._device.type == "cuda" and self.cache.paged_kernel and not config.enforce_eager:
            self._graphs = self._capture(config.max_num_seqs, TABLE + width)

    def prepare(self, output: SchedulerOutput, last_tokens: Tensor | None = None) -> ModelInput:
        """Lay out a step. Does not change the sequences.

        ``last_tokens`` [chunks], on the device, are what the step in flight samples. Each
        sequence then computes that token before its id is known here.
        """
        if output.tainted:
            self.cache.scrub(output.tainted)
        for seq in (*output.admitted, *output.grown):
            table = self._block_tables[seq.slot]
            table[: len(seq.block_ids)] = seq.block_ids
            table[len(seq.block_ids) :] = NULL_BLOCK
        first = [
            seq.num_computed if last_tokens is None else seq.num_tokens for seq, _ in output.chunks
        ]
        pieces = [(seq, at, n) for (seq, n), at in zip(output.chunks, first, strict=True)]
        if self._graphs is not None and (rows := _decode_rows(pieces)) is not None:
            num_rows = self._graphs.num_rows(len(rows))
            if num_rows is not None and not self._needs_hooks(output.chunks):
                return self._prepare_decode(rows, num_rows, last_tokens)
        return self._prepare_mixed(pieces, last_tokens)

    def forward(self, model_input: ModelInput) -> Tensor:
        """Logits [len(logits_rows), vocabulary] in the model's dtype; valid until the next
        step."""
        if self._graphs is not None and isinstance(model_input.metadata, DecodeTable):
            logits = self._graphs.replay(model_input.metadata.rows)
            return logits.index_select(0, model_input.logits_rows)
        with self._adapters.active(model_input.adapter_rows):
            return self._loaded.model(
                model_input.input_ids,
                model_input.position_ids,
                model_input.metadata,
                model_input.logits_rows,
            )

    def _prepare_decode(
        self, rows: list[tuple[Sequence, int]], num_rows: int, last_tokens: Tensor | None
    ) -> ModelInput:
        """A step for a graph: each row one token of a sequence, at a position."""
        positions = np.array([position for _, position in rows])
        table = decode_table(
            token_ids=_token_ids(rows, last_tokens),
            positions=positions,
            block_tables=self._block_tables[[seq.slot for seq, _ in rows]],
            block_size=self._block_size,
            num_rows=num_rows,
        )
        layout = [(seq, position, 1) for seq, position in rows]
        sampled = [i for i, (seq, position) in enumerate(rows) if position + 1 >= seq.num_tokens]
        scored, scored_rows = scored_pieces(layout)
        wanted = np.concatenate([np.array(sampled, dtype=np.int64), scored_rows])
        moved, logits_rows = to_device([table, wanted], self._device)
        if last_tokens is not None:
            moved[: len(rows), TOKEN] = last_tokens
        return ModelInput(
            input_ids=moved[:, TOKEN],
            position_ids=moved[:, POSITION],
            metadata=DecodeTable(moved),
            logits_rows=logits_rows,
            layout=layout,
            sampled=[rows[i][0] for i in sampled],
            scored=scored,
            adapter_rows=[],
        )

    def _prepare_mixed(self, layout: list[Piece], last_tokens: Tensor | None) -> ModelInput:
        """A step as one flat batch, for any mixture of chunks."""
        layout = sorted(layout, key=lambda piece: piece[2] > 1)  # single tokens first
        sequences = [seq for seq, _, _ in layout]
        sizes = np.array([size for _, _, size in layout])
        first = np.array([position for _, position, _ in layout])
        ends = sizes.cumsum()
        owner = np.repeat(np.arange(len(sequences)), sizes)
        positions = np.arange(ends[-1]) + np.repeat(first - (ends - sizes), sizes)
        width = int((first + sizes - 1).max()) // self._block_size + 1
        tables = self._block_tables[[seq.slot for seq in sequences], :width]
        rows = [(seq, at + i) for seq, at, size in layout for i in range(size)]
        sampled = [i for i, (seq, at, n) in enumerate(layout) if at + n >= seq.num_tokens]
        scored, scored_rows = scored_pieces(layout)
        ids, places, logits_rows, *tensors = to_device(
            [
                np.array(_token_ids(rows, last_tokens)),
                positions,
                np.concatenate([ends[sampled] - 1, scored_rows]),
                slots(positions, tables[owner], self._block_size),
                np.concatenate([[0], ends]),
                first + sizes,
                tables,
            ],
            self._device,
        )
        return ModelInput(
            input_ids=ids if last_tokens is None else last_tokens,
            position_ids=places,
            metadata=mixed_metadata(
                self.cache, sizes.tolist(), first.tolist(), tensors, self._block_size
            ),
            logits_rows=logits_rows,
            layout=layout,
            sampled=[sequences[i] for i in sampled],
            scored=scored,
            adapter_rows=self._adapters.rows_of(sequences, owner, self._device),
        )

    def _needs_hooks(self, chunks: list[tuple[Sequence, int]]) -> bool:
        """Whether a step needs adapters or recorded states, which graphs lack."""
        sequences = [seq for seq, _ in chunks]
        recorded = any(seq.record is not None for seq in sequences)
        return recorded or self._adapters.in_use(sequences)

    def _make_cache(self, num_blocks: int) -> TokenMajorCache:
        loaded = self._loaded
        cache: TokenMajorCache = loaded.backend.make_cache(
            loaded.layer_shapes, num_blocks, self._block_size, loaded.dtype
        )
        return cache

    def _num_blocks(self, config: EngineConfig, table_width: int) -> int:
        """The configured number of blocks, or what fits into memory; never more than the longest
        sequences in every slot can fill."""
        loaded = self._loaded
        block_bytes = self._block_size * sum(
            shape.token_bytes(loaded.dtype) for shape in loaded.layer_shapes.values()
        )
        available = config.kv_cache_bytes
        if available is None:
            available = kv_cache_budget(
                self._device,
                config.gpu_memory_utilization,
                lambda: self._profile(config.max_num_batched_tokens, config.max_num_seqs),
            )
        num_blocks = min(available // block_bytes, config.max_num_seqs * table_width)
        if num_blocks < 1:
            raise ValueError(
                f"The KV cache needs {block_bytes} bytes for a block and may have {available}: "
                "raise kv_cache_bytes or gpu_memory_utilization"
            )
        logger.info("KV cache of %d blocks of %d tokens", num_blocks, self._block_size)
        return 1 + num_blocks

    @torch.inference_mode()
    def _profile(self, max_tokens: int, max_rows: int) -> None:
        """Run the largest step: the whole token budget with logits for every token, as when a
        prompt is scored, and the sampler's float32 copy and cumulative sum for every slot. One
        sequence uses the whole budget, even beyond the context."""
        blocks = torch.arange(1, 2 + (max_tokens - 1) // self._block_size)[None]
        cache = self._make_cache(blocks.shape[1] + 1)
        metadata = self._loaded.backend.piece(cache, 0, max_tokens, blocks, self._block_size)
        ids = torch.zeros(max_tokens, dtype=torch.int64, device=self._device)
        places = torch.arange(max_tokens, device=self._device)
        logits: Tensor = self._loaded.model(ids, places % self._max_k, metadata, places)
        logits[:1].expand(max_rows, -1).float().double().cumsum(-1)

    def _capture(self, max_rows: int, table_width: int) -> DecodeGraphs | None:
        """Capture the decode step. Return None for a model that cannot be captured."""
        graphs = DecodeGraphs(max_rows, table_width, self._device)
        all_rows = torch.arange(max_rows, device=self._device)

        def decode(table: Tensor) -> Tensor:
            metadata = decode_metadata(self.cache, table, self._max_k)
            rows = all_rows[: len(table)]
            return self._loaded.model(table[:, TOKEN], table[:, POSITION], metadata, rows)

        try:
            graphs.capture(decode)
        except RuntimeError as error:
            logger.warning("decoding without CUDA graphs: the model cannot be captured: %s", error)
            return None
        return graphs


def _decode_rows(pieces: list[Piece]) -> list[tuple[Sequence, int]] | None:
    """Every token of a step with its position, or None if a chunk is a prefill."""
    if any(size > _MAX_DECODE_TOKENS for _, _, size in pieces):
        return None
    return [(seq, position + i) for seq, position, size in pieces for i in range(size)]


def _token_ids(rows: list[tuple[Sequence, int]], last_tokens: Tensor | None) -> list[int]:
    """A sequence's tokens at the positions; zeros for those that only the device knows."""
    if last_tokens is not None:
        return [0] * len(rows)
    return [seq.token_ids[position] for seq, position in rows]
