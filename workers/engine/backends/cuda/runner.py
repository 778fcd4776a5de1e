"""Runs a step of the scheduler on the GPU: tokens to logits."""

import logging
from collections.abc import Sequence as Rows
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workers.engine.backends.base.budget import CacheBudget, cache_bytes
from workers.engine.backends.base.loaded_model import LoadedModel
from workers.engine.backends.base.paged import PagedModel
from workers.engine.backends.base.transfers import Ints, to_device
from workers.engine.backends.cuda.block_tables import BlockTables
from workers.engine.backends.cuda.experts import experts_that_do_not_wait, must_copy_experts
from workers.engine.backends.cuda.graphs import DecodeGraphs
from workers.engine.backends.cuda.inputs import (
    POSITION,
    ROW,
    TOKEN,
    DecodeTable,
    decode_metadata,
    decode_table,
    mix_metadata,
)
from workers.engine.backends.cuda.kv_cache import TokenMajorCache
from workers.engine.backends.recurrent.batch import (
    DecodeBatch,
    StateBatch,
    StatePiece,
    lay_out_states,
)
from workers.engine.backends.recurrent.states import StateShapes, StateTable, bytes_per_row
from workers.engine.config import EngineConfig
from workers.engine.core.attention_backend import Part
from workers.engine.core.model_input import ModelInput, find_scored_pieces
from workers.engine.core.plan import BatchPlan, Placed
from workers.engine.core.runner import TEXT_TASKS, Draw
from workers.engine.core.sequence import Piece
from workers.engine.core.step import SchedulerOutput

logger = logging.getLogger(__name__)


_MAX_DECODE_TOKENS = 8
"""Up to this many tokens of a sequence, such as tokens that a grammar forced, become one row each
of a decode table, whatever they read."""

_MAX_GRAPH_ROWS = 1024
_MOST_READ = 2**30
"""Bytes of a layer's cache that longer chunks may read as a decode table, where each row reads its
own context; with 8 key heads of 128, a prompt of 724 tokens. Measured on an H100: more cost more
than launching a prefill's kernels."""


class CudaRunner:
    """The GPU's counterpart of ``CpuRunner``: launches a step and returns before it has run.

    A step of few tokens, of short prompts too, is laid out as a decode table and replayed as a
    graph, if the kernel supports every layer and no row has an adapter. Of a model with states, it
    is a step of single tokens that all continue a state. Any other step runs eagerly, as a flat
    batch: launching its kernels one by one takes about 1 ms per layer.
    """

    tasks = TEXT_TASKS
    shares_blocks = True
    cuts_prompts = True
    drafting = None
    """The kernels round differently for other numbers of tokens."""

    def __init__(
        self, model: PagedModel, loaded: LoadedModel, config: EngineConfig, draw: Draw
    ) -> None:
        self._model = model
        self._draw = draw
        self._loaded = loaded
        self._adapters = loaded.adapters
        self._device = loaded.device
        self._block_size = config.block_size
        self._mixers = model.mixers
        self._shapes: StateShapes = {} if self._mixers is None else self._mixers.shapes
        self.repeats_steps = self._mixers is None
        """A step that failed for lack of memory can run again, if it only writes the same into
        blocks: states change."""
        self.looks_ahead = config.async_scheduling and self._mixers is None
        self._max_k = loaded.max_model_len
        self._max_tokens = config.max_num_batched_tokens
        width = -(-loaded.max_model_len // config.block_size)
        self._tables = BlockTables(config.max_num_seqs, width, self._device)
        budget = self._divide_memory(config)
        self.cache = self._make_cache(loaded.agree_on(1 + budget.num_blocks))
        first_saved = config.max_num_seqs + 1
        num_states = first_saved + budget.num_saved_states
        self._states = StateTable(self._shapes, num_states, self._device)
        self.saved_states = range(first_saved, num_states) if self._mixers else None
        """The rows of saved states, after those of the slots and that of padding rows of graphs."""
        self.graphs: DecodeGraphs | None = None
        if self._device.type == "cuda" and not config.enforce_eager:
            self.graphs = self.capture_with_others()

    def prepare(self, output: SchedulerOutput, last_tokens: Tensor | None = None) -> ModelInput:
        """Lay out a step. Does not change the sequences.

        ``last_tokens`` [chunks], on the device, are the samples of the step in flight. Each
        sequence then computes that token before its id is known on the host.
        """
        self.follow(output.tainted, output.admitted, output.grown)
        for row, slot in output.restores:
            self._states.copy_row(row, slot)
        first = [
            seq.num_computed if last_tokens is None else len(seq.token_ids)
            for seq, _ in output.chunks
        ]
        pieces = [(seq, at, n) for (seq, n), at in zip(output.chunks, first, strict=True)]
        needs_hooks = any(
            seq.record is not None or seq.adapter is not None for seq, _ in output.chunks
        )
        as_graph = not needs_hooks and self._fits_graph(pieces)  # graphs have no hooks
        if as_graph:
            layout = [(seq, at + i, 1) for seq, at, size in pieces for i in range(size)]
        else:
            layout = sorted(pieces, key=lambda piece: piece[2] > 1)  # single tokens first
        sequences = [seq for seq, _, _ in layout]
        sizes = np.array([size for _, _, size in layout])
        ends = sizes.cumsum()
        sampled = [i for i, (seq, at, n) in enumerate(layout) if at + n >= len(seq.token_ids)]
        scored, scored_rows = find_scored_pieces(layout)
        plan = BatchPlan(
            slots=np.array([seq.slot for seq in sequences]),
            first=np.array([position for _, position, _ in layout]),
            sizes=sizes,
            token_ids=_token_ids(layout, last_tokens),
            logits_rows=np.concatenate([ends[sampled] - 1, scored_rows]),
            as_graph=as_graph,
            ahead=last_tokens is not None,
        )
        owner = np.repeat(np.arange(len(sizes)), sizes)
        return replace(
            self.lay_out(plan, last_tokens),
            layout=layout,
            sampled=[sequences[i] for i in sampled],
            scored=scored,
            adapter_rows=self._adapters.lay_rows(sequences, owner, self._device),
            states=self._mixers
            and lay_out_states(self._states, layout, output.saves, self._mixers.continues),
        )

    def follow(self, tainted: list[int], admitted: Rows[Placed], grown: Rows[Placed]) -> None:
        """Scrub blocks, and note the blocks of slots with a new sequence or with more blocks."""
        if tainted:
            self.cache.scrub(tainted)
        self._tables.follow(admitted, grown)

    def lay_out(self, plan: BatchPlan, last_tokens: Tensor | None = None) -> ModelInput:
        """Return the tensors of a planned batch, for sequences that only another process may
        know."""
        lay_out = self._lay_out_graph if plan.as_graph else self._lay_out_mixed
        return lay_out(plan, last_tokens)

    def forward(self, model_input: ModelInput) -> Tensor:
        """Return logits [len(logits_rows), vocabulary] in the model's dtype; valid until the next
        step."""
        if self.graphs is not None and isinstance(model_input.metadata, DecodeTable):
            logits = self.graphs.replay(model_input.metadata.rows, model_input.logits_rows)
            if model_input.states is not None:
                model_input.states.save()
            return logits
        try:
            return self._run_eagerly(model_input)
        except torch.OutOfMemoryError as error:
            if (
                self._loaded.ranks is not None
                or model_input.is_recorded
                or self._mixers is not None
            ):
                raise  # other ranks have not finished the step; a record or state gets tokens twice
            # Free memory may be fragmented: release it, and repeat the step with the same writes.
            logger.warning("a step runs again after memory was returned to the GPU: %s", error)
        torch.cuda.empty_cache()
        return self._run_eagerly(model_input)

    def _run_eagerly(self, model_input: ModelInput) -> Tensor:
        assert model_input.metadata is not None
        with self._adapters.active(model_input.adapter_rows):
            return self._model(
                model_input.input_ids,
                model_input.position_ids,
                model_input.metadata,
                model_input.logits_rows,
                model_input.states,
            )

    def _fits_graph(self, pieces: list[Piece]) -> bool:
        """Return whether there is a graph for a row of each token, and it reads few pages."""
        if self.graphs is None or self._graph_rows(sum(size for _, _, size in pieces)) is None:
            return False
        if self._mixers and any(at == 0 or size > 1 for _, at, size in pieces):
            return False  # rows of a graph continue a state, each its own
        _, scored_rows = find_scored_pieces(pieces)
        if len(pieces) + len(scored_rows) > self.graphs.max_logits:
            return False
        tokens_read = sum(
            size * (2 * at + size + 1) // 2 for _, at, size in pieces if size > _MAX_DECODE_TOKENS
        )
        shapes = self._loaded.layer_shapes
        return tokens_read * self._loaded.block_bytes(1) <= _MOST_READ * len(shapes)

    def _graph_rows(self, count: int) -> int | None:
        """Return the rows of the graph for ``count`` tokens; None if there is none."""
        return None if self.graphs is None else self.graphs.num_rows(count)

    def _lay_out_graph(self, plan: BatchPlan, last_tokens: Tensor | None) -> ModelInput:
        """Return a step for a graph: each row is one token of a sequence, at a position."""
        num_rows = self._graph_rows(len(plan.slots))
        assert num_rows is not None
        table = decode_table(
            token_ids=plan.token_ids,
            positions=plan.first,
            slots=self._tables.places(plan.slots, plan.first, self._block_size),
            rows=plan.slots,
            num_rows=num_rows,
            null_row=self._tables.num_slots,
        )
        moved, logits_rows = to_device([table, plan.logits_rows], self._device)
        if last_tokens is not None:
            moved[: len(plan.slots), TOKEN] = last_tokens
        ids, places = moved[:, TOKEN], moved[:, POSITION]
        return _input(plan, ids, places, DecodeTable(moved), logits_rows)

    def _lay_out_mixed(self, plan: BatchPlan, last_tokens: Tensor | None) -> ModelInput:
        """Return a step as one flat batch, for any mixture of chunks."""
        sizes, first = plan.sizes, plan.first
        ends = sizes.cumsum()
        owner = np.repeat(np.arange(len(sizes)), sizes)
        positions = np.arange(ends[-1]) + np.repeat(first - (ends - sizes), sizes)
        width = int((first + sizes - 1).max()) // self._block_size + 1
        ids, places, logits_rows, slots, starts, lengths, of_sequences = to_device(
            [
                plan.token_ids,
                positions,
                plan.logits_rows,
                self._tables.places(plan.slots[owner], positions, self._block_size),
                np.concatenate([[0], ends]),
                first + sizes,
                plan.slots,
            ],
            self._device,
        )
        tensors = [slots, starts, lengths, self._tables.rows(of_sequences, width)]
        metadata = mix_metadata(
            self.cache, sizes.tolist(), first.tolist(), tensors, self._block_size
        )
        ids = ids if last_tokens is None else last_tokens
        return _input(plan, ids, places, metadata, logits_rows)

    def _make_cache(self, num_blocks: int) -> TokenMajorCache:
        loaded = self._loaded
        cache: TokenMajorCache = loaded.backend.make_cache(
            loaded.layer_shapes, num_blocks, self._block_size, loaded.dtype
        )
        return cache

    def _divide_memory(self, config: EngineConfig) -> CacheBudget:
        available = cache_bytes(
            config,
            self._device,
            lambda: self.profile(config.max_num_batched_tokens, config.max_num_seqs),
        )
        row = bytes_per_row(self._shapes)
        budget = CacheBudget.divide(available - row, self._loaded, row, config)
        logger.info("KV cache of %d blocks of %d tokens", budget.num_blocks, self._block_size)
        return budget

    def capture_with_others(self) -> DecodeGraphs | None:
        """Capture the decode step if every rank can: all must run a step in the same way."""
        return self.capture() if self._loaded.agree_on(int(self.cache.is_bounded)) else None

    @torch.inference_mode()
    def profile(self, max_tokens: int, max_rows: int) -> None:
        """Run the largest step: the whole token budget with logits for every token, as in scoring
        a prompt, and a draw from the widest nucleus for every slot. One sequence uses the whole
        budget, even beyond the context."""
        blocks = list(range(1, 2 + (max_tokens - 1) // self._block_size))
        cache = self._make_cache(len(blocks) + 1)
        part = Part(0, max_tokens, blocks)
        metadata = self._loaded.backend.batch(cache, [part], self._block_size)
        ids = torch.zeros(max_tokens, dtype=torch.int64, device=self._device)
        places = torch.arange(max_tokens, device=self._device)
        states = self._mixers and StateBatch(
            StateTable(self._shapes, 1, self._device),
            [StatePiece(0, 0, max_tokens, position=0)],
            self._mixers.continues,
        )
        logits: Tensor = self._model(ids, places % self._max_k, metadata, places, states)
        self._draw(logits.shape[1], max_rows, self._device)

    def capture(self) -> DecodeGraphs | None:
        """Capture steps of short prompts, or where that fails, for lack of memory perhaps, of one
        token per sequence only. Return None for a model that cannot be captured."""
        num_slots = max_rows = self._tables.num_slots
        copies = must_copy_experts(self._model.model, self._device, self._loaded.dtype)
        if self._mixers is None and not copies:
            max_rows = max(num_slots, min(_MAX_GRAPH_ROWS, self._max_tokens))

        def decode(table: Tensor, logits_rows: Tensor) -> Tensor:
            blocks = self._tables.rows(table[:, ROW])
            metadata = decode_metadata(self.cache, table, blocks, self._max_k)
            states = self._mixers and DecodeBatch(self._states, table[:, ROW])
            return self._model(table[:, TOKEN], table[:, POSITION], metadata, logits_rows, states)

        complaint = ""
        for most in dict.fromkeys((max_rows, num_slots)):
            graphs = DecodeGraphs(most, num_slots, self._device)
            try:
                with experts_that_do_not_wait(self._model.model, self._device, self._loaded.dtype):
                    graphs.capture(decode, self._loaded.ranks)
            except RuntimeError as error:
                complaint = str(error)
                logger.info("no CUDA graphs of %d rows: %s", most, complaint)
            else:
                return graphs
        logger.warning("decoding without CUDA graphs: the model cannot be captured: %s", complaint)
        return None


def _token_ids(layout: list[Piece], last_tokens: Tensor | None) -> Ints:
    """Return the tokens of a flat batch; zeros for those that only the device knows."""
    if last_tokens is not None:
        return np.zeros(sum(size for _, _, size in layout), dtype=np.int64)
    return np.array([id for seq, at, size in layout for id in seq.token_ids[at : at + size]])


def _input(
    plan: BatchPlan, ids: Tensor, places: Tensor, metadata: Any, logits_rows: Tensor
) -> ModelInput:
    return ModelInput(
        input_ids=ids,
        position_ids=places,
        metadata=metadata,
        logits_rows=logits_rows,
        layout=[],
        sampled=[],
        scored=[],
        adapter_rows=[],
        plan=plan,
    )
