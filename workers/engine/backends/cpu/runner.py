"""Turns the scheduler's decision into tensors and runs them through the model to logits."""

import time
from collections.abc import Sequence as Rows
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.engine.backends.base.budget import CacheBudget, cache_bytes
from workers.engine.backends.base.loaded_model import LoadedModel
from workers.engine.backends.base.paged import PagedModel
from workers.engine.backends.cpu.attention import AttentionMetadata, DecodeGroup, PrefillChunk
from workers.engine.backends.cpu.kv_cache import KVCache
from workers.engine.backends.cpu.thread_tuner import ThreadTuner
from workers.engine.backends.recurrent.batch import StateBatch, StatePiece, lay_out_states
from workers.engine.backends.recurrent.states import StateTable, bytes_per_row
from workers.engine.config import EngineConfig
from workers.engine.core.model_input import ModelInput, find_scored_pieces
from workers.engine.core.plan import NULL_BLOCK, BatchPlan, Placed
from workers.engine.core.runner import TEXT_TASKS, Drafting, StateCopies
from workers.engine.core.sequence import Piece, Sequence
from workers.engine.core.step import SchedulerOutput, StateSave

_MAX_DRAFTING = 8
"""The most sequences with states that draft in one step: each needs memory for a copy. Drafts of
large batches are seldom worth their time."""

_MAX_PADDING = 1024
"""Padding slots that a decode group may read before another group is cheaper."""

_SHORT_CHUNK = 8
"""Up to this many tokens after cached ones attend faster as separate rows of a decode group than
as a chunk with its own product. The C forward shares the keys that a chunk reads."""


class CpuRunner:
    """Owns the KV cache and mirrors the block tables of running sequences, one row per slot."""

    looks_ahead = False
    """A CPU runs a step at once: there is nothing to overlap."""
    tasks = TEXT_TASKS
    shares_blocks = True
    """A sequence may begin with blocks that another one computed."""
    repeats_steps = False
    """A step changes states."""
    cuts_prompts = True
    """The chunks of a prompt cost what their tokens cost."""

    def __init__(self, model: PagedModel, loaded: LoadedModel, config: EngineConfig) -> None:
        self._model = model
        self._adapters = loaded.adapters
        fixed = config.num_threads is not None
        self._tuner = None if fixed else ThreadTuner(torch.get_num_threads())
        self._block_size = config.block_size
        self._dtype = loaded.dtype
        self._mixers = model.mixers
        shapes = {} if self._mixers is None else self._mixers.shapes
        available = cache_bytes(config, loaded.device)
        num_drafting = _MAX_DRAFTING if config.speculation and model.native is not None else 0
        budget = CacheBudget.divide(
            available, loaded, bytes_per_row(shapes), config, min(num_drafting, config.max_num_seqs)
        )
        num_lasting = config.max_num_seqs + budget.num_saved_states
        self._state_copies = range(num_lasting, num_lasting + budget.num_state_copies)
        self._states = StateTable(shapes, self._state_copies.stop)
        self.saved_states = range(config.max_num_seqs, num_lasting) if self._mixers else None
        """The rows of saved states, after those of the slots."""
        num_blocks = loaded.agree_on(1 + budget.num_blocks)
        self.cache = KVCache(loaded.layer_shapes, num_blocks, config.block_size, loaded.dtype)
        table_width = min(-(-loaded.max_model_len // config.block_size), num_blocks)
        self._block_tables = np.full((config.max_num_seqs, table_width), NULL_BLOCK, dtype=np.int64)

    @property
    def _may_be_exact(self) -> bool:
        """Whether the modules may compute tokens that are dropped, and round finely."""
        return self._dtype == torch.float32 and self._mixers is None

    @property
    def drafting(self) -> Drafting | None:
        """None unless :meth:`is_exact` holds for any sequence, and there is memory for copies of
        states."""
        if self._model.native is None and not self._may_be_exact:
            return None
        if self._mixers is None:
            return Drafting(self.is_exact, self.try_forward)
        if not self._state_copies:
            return None
        copies = StateCopies(self._state_copies, self._try_copy)
        return Drafting(self.is_exact, self.try_forward, copies)

    def is_exact(self, seq: Sequence) -> bool:
        """Return whether the tokens of ``seq`` do not depend on how many tokens a step computes.

        In the C forward, no bit of the logits depends on it. Through modules in float32 the last
        bits do, which can change a random draw, but hardly ever the likeliest token.
        """
        if self._model.native is not None and not self._needs_modules(seq):
            return True
        return self._may_be_exact and seq.sampling.greedy

    @torch.inference_mode()
    def try_forward(self, num_tokens: int) -> None:
        """Run a forward pass of one token each of ``num_tokens`` sequences, to see how long it
        takes. Uses the null block alone, and the state of the first slot for all of them."""
        rows = torch.arange(num_tokens)
        positions = torch.full_like(rows, self._block_size - 1)
        tables = torch.full((num_tokens, 1), NULL_BLOCK)
        slots = tables[:, 0] * self._block_size + positions
        group = DecodeGroup(0, num_tokens, tables, positions)
        metadata = AttentionMetadata(self.cache, slots, [group], [], tables, rows)
        piece = StatePiece(0, 0, num_tokens, position=0)
        states = self._mixers and StateBatch(self._states, [piece], self._mixers.continues)
        self._model(torch.zeros_like(rows), positions, metadata, rows, states)

    def _try_copy(self) -> None:
        self._states.copy_row(0, self._state_copies[0])

    def prepare(self, output: SchedulerOutput, last_tokens: Tensor | None = None) -> ModelInput:
        """Lay out a step. Does not change the sequences."""
        assert last_tokens is None, "steps are launched ahead on a GPU only"
        self.follow(output.tainted, output.admitted, output.grown)
        for row, slot in output.restores:
            self._states.copy_row(row, slot)
        if self._model.native is None:
            return self._lay_out(output.chunks, output.saves)
        # The modules round differently from the C forward: a sequence's tokens must not change
        # because another sequence of the step needs the modules.
        bypassing = [chunk for chunk in output.chunks if not self._needs_modules(chunk[0])]
        others = [chunk for chunk in output.chunks if self._needs_modules(chunk[0])]
        if not bypassing or not others:
            return self._lay_out(output.chunks, output.saves)
        apart = self._lay_out(others, output.saves)
        return replace(self._lay_out(bypassing, output.saves), apart=apart)

    def follow(self, tainted: list[int], admitted: Rows[Placed], grown: Rows[Placed]) -> None:
        """Scrub blocks, and note the blocks of slots with a new sequence or with more blocks."""
        if tainted:
            self.cache.scrub(tainted)
        for placed in (*admitted, *grown):
            table = self._block_tables[placed.slot]
            table[: len(placed.block_ids)] = placed.block_ids
            table[len(placed.block_ids) :] = NULL_BLOCK

    def _needs_modules(self, seq: Sequence) -> bool:
        return seq.record is not None or seq.adapter is not None

    def _lay_out(self, chunks: list[tuple[Sequence, int]], saves: Rows[StateSave]) -> ModelInput:
        """Return the tensors of some sequences' tokens. ``saves`` may be of others too."""
        # Sorted by length, neighbours pad each other least; all grow by one per step, so the
        # order of rows lasts until a sequence joins or leaves.
        run_modules = any(self._needs_modules(seq) for seq, _ in chunks)
        in_c = self._model.native is not None and not run_modules
        singles, longer = _split(chunks, 1 if in_c or self._mixers else _SHORT_CHUNK)
        singles.sort(key=lambda piece: -piece[1])
        pieces = singles + longer
        sequences = [seq for seq, _, _ in pieces]
        sizes = np.array([size for _, _, size in pieces])
        sampled = _find_sampled_rows(pieces, sizes.cumsum())
        scored, scored_rows = find_scored_pieces(pieces)
        plan = BatchPlan(
            slots=np.array([seq.slot for seq in sequences]),
            first=np.array([position for _, position, _ in pieces]),
            sizes=sizes,
            token_ids=np.array(_token_ids(pieces)),
            logits_rows=np.concatenate([[row for _, row in sampled], scored_rows]).astype(np.int64),
        )
        adapter_rows = (
            self._adapters.lay_rows(sequences, np.arange(len(sizes)).repeat(sizes))
            if run_modules
            else []
        )
        return replace(
            self.lay_out(plan, run_modules=run_modules),
            layout=pieces,
            sampled=[seq for seq, _ in sampled],
            scored=scored,
            adapter_rows=adapter_rows,
            states=self._mixers
            and lay_out_states(self._states, pieces, saves, self._mixers.continues),
        )

    def lay_out(
        self, plan: BatchPlan, last_tokens: Tensor | None = None, *, run_modules: bool = True
    ) -> ModelInput:
        """Return the tensors of a planned batch, for sequences that only another process may
        know."""
        assert last_tokens is None, "steps are launched ahead on a GPU only"
        first, sizes, size = plan.first, plan.sizes, self._block_size
        ends = sizes.cumsum()
        positions = np.arange(ends[-1]) + np.repeat(first - (ends - sizes), sizes)
        tables = self._block_tables[plan.slots]
        owner = np.repeat(np.arange(len(sizes)), sizes)
        slots = tables[owner, positions // size] * size + positions % size
        metadata = AttentionMetadata(
            cache=self.cache,
            slots=torch.from_numpy(slots),
            groups=[],
            chunks=[],
            tables=torch.from_numpy(tables),
            owners=torch.from_numpy(owner),
            run_modules=run_modules,
        )
        if self._model.native is None or not self._model.native.takes(metadata):
            num_singles = int((sizes == 1).sum())
            metadata.groups = self._groups(first[:num_singles], tables)
            metadata.chunks = self._prefill_chunks(first, ends, tables, num_singles)
        return ModelInput(
            input_ids=torch.from_numpy(plan.token_ids),
            position_ids=torch.from_numpy(positions),
            metadata=metadata,
            logits_rows=torch.from_numpy(plan.logits_rows),
            layout=[],
            sampled=[],
            scored=[],
            adapter_rows=[],
            plan=plan,
        )

    def forward(self, model_input: ModelInput) -> Tensor:
        """Return logits [rows, vocabulary], in the model's dtype or float32, of ``all_sampled`` and
        then of ``all_scored``; valid until the next forward."""
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
        assert model_input.metadata is not None
        adapter_rows = model_input.adapter_rows
        with self._adapters.active(adapter_rows) if adapter_rows else nullcontext():
            return self._model(
                model_input.input_ids,
                model_input.position_ids,
                model_input.metadata,
                model_input.logits_rows,
                model_input.states,
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


def _split(chunks: list[tuple[Sequence, int]], short: int) -> tuple[list[Piece], list[Piece]]:
    """Single tokens, and chunks of several; runs of up to ``short`` forced or drafted tokens become
    single ones. All keys of a step are stored before any token attends, so each sees those before
    it."""
    singles: list[Piece] = []
    longer: list[Piece] = []
    for seq, size in chunks:
        first = seq.num_computed
        if size == 1 or (first > 0 and size <= short):
            singles.extend((seq, first + i, 1) for i in range(size))
        else:
            longer.append((seq, first, size))
    return singles, longer


def _token_ids(pieces: list[Piece]) -> list[int]:
    token_ids: list[int] = []
    for seq, first, size in pieces:
        if size == 1 and first < len(seq.token_ids):
            token_ids.append(seq.token_ids[first])
        else:
            token_ids.extend(seq.tokens_at(first, size))
    return token_ids


def _find_sampled_rows(pieces: list[Piece], ends: NDArray[np.int64]) -> list[tuple[Sequence, int]]:
    """Return the rows of a flat batch from whose logits a token is sampled, with their sequences.
    Rows of one sequence are adjacent, in the order of its tokens."""
    rows_by_sequence: dict[Sequence, list[tuple[int, int]]] = {}
    for (seq, at, size), end in zip(pieces, ends.tolist(), strict=True):
        if at + size < seq.num_tokens:
            continue
        for num_drafted in seq.draft.rows:
            position = seq.num_tokens - 1 + num_drafted
            if at <= position < at + size:
                rows_by_sequence.setdefault(seq, []).append((position, end - size + position - at))
    return [(seq, row) for seq, rows in rows_by_sequence.items() for _, row in sorted(rows)]


def _group_bounds(num_blocks: list[int], block_size: int) -> list[int]:
    """Return where to cut rows, longest first, so that no group pads more than ``_MAX_PADDING``."""
    bounds, padding = [0], 0
    for row, blocks in enumerate(num_blocks):
        padding += (num_blocks[bounds[-1]] - blocks) * block_size
        if padding > _MAX_PADDING:
            bounds.append(row)
            padding = 0
    if num_blocks:
        bounds.append(len(num_blocks))
    return bounds
