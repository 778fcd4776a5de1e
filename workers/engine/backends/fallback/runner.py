"""Runs a step of the scheduler through the general way: each sequence by itself, whole prompts."""

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from workers.engine.backends.base.budget import cache_bytes, count_blocks
from workers.engine.backends.base.loaded_model import LoadedModel
from workers.engine.backends.fallback.model import FallbackModel, GeneratedSequence
from workers.engine.config import EngineConfig
from workers.engine.core.model_input import ModelInput, find_scored_pieces
from workers.engine.core.runner import TEXT_TASKS
from workers.engine.core.sequence import Piece, Sequence
from workers.engine.core.step import SchedulerOutput

_PROFILED_TOKENS = 4096
"""The length of a prompt whose forward must fit on a GPU beside the caches."""


@dataclass(frozen=True, slots=True)
class BlockCount:
    """The blocks by which the scheduler counts tokens; each sequence really has its own cache."""

    num_blocks: int


class FallbackRunner:
    """The general way's counterpart of ``CpuRunner``.

    A prompt is computed at once, with its last chunk: most recurrent layers cannot begin again in
    the middle of one. The chunks before it only count. A preempted sequence loses its cache and is
    computed again.
    """

    looks_ahead = False
    tasks = TEXT_TASKS
    shares_blocks = False
    repeats_steps = False
    """A step extends the caches of its sequences one by one."""
    cuts_prompts = False
    """The last chunk of a prompt costs what the whole prompt costs."""

    saved_states = None
    drafting = None

    def __init__(self, model: FallbackModel, loaded: LoadedModel, config: EngineConfig) -> None:
        self._model = model
        self._device = loaded.device
        self._owned: dict[int, tuple[Sequence, GeneratedSequence]] = {}
        """By slot: the sequence that runs there, and its state."""
        self.cache = BlockCount(1 + _num_blocks(self._model, loaded.device, config))

    def prepare(self, output: SchedulerOutput, last_tokens: Tensor | None = None) -> ModelInput:
        """Lay out a step. Does not change the sequences."""
        assert last_tokens is None, "steps are launched ahead through the paged forwards only"
        self._owned = {
            slot: (seq, state)
            for slot, (seq, state) in self._owned.items()
            if seq.slot == slot and not seq.finished
        }
        for seq in output.admitted:
            self._owned[seq.slot] = seq, self._model.begin(seq.adapter)
        pieces: list[Piece] = []
        for seq, size in output.chunks:
            if seq.num_computed + size == seq.num_tokens:
                computed = self._owned[seq.slot][1].length
                pieces.append((seq, computed, seq.num_tokens - computed))
        sizes = np.array([size for _, _, size in pieces], dtype=np.int64)
        scored, scored_rows = find_scored_pieces(pieces)
        ids = [seq.token_ids[at : at + size] for seq, at, size in pieces]
        return ModelInput(
            input_ids=torch.tensor([*chain(*ids)], dtype=torch.int64),
            position_ids=torch.empty(0),
            metadata=None,
            logits_rows=torch.from_numpy(np.concatenate([sizes.cumsum() - 1, scored_rows])),
            layout=pieces,
            sampled=[seq for seq, _, _ in pieces],
            scored=scored,
            adapter_rows=[],
        )

    def forward(self, model_input: ModelInput) -> Tensor:
        """Return logits [rows, vocabulary] of ``all_sampled`` and then of ``all_scored``. A
        sequence whose own forward fails has none, and a fault of its own."""
        scored = {seq for seq, _, _ in model_input.scored}
        computed = [torch.empty(0, self._model.vocab_size, device=self._device)]
        places = np.zeros(len(model_input.input_ids), dtype=np.int64)  # of the flat batch's rows
        end = num_rows = 0
        for i, (seq, _, size) in enumerate(model_input.layout):
            try:
                rows = self._extend(seq, size, model_input.is_recorded or seq in scored)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                if model_input.is_recorded or self._device.type != "cpu":
                    raise  # hooks saw half of a forward; or the GPU may be unusable
                rows = torch.full((size, self._model.vocab_size), torch.nan)
                model_input.faults[i] = error
            end += size
            places[end - len(rows) : end] = np.arange(num_rows, num_rows + len(rows))
            num_rows += len(rows)
            computed.append(rows)
        wanted = torch.from_numpy(places[model_input.logits_rows.numpy()])
        return torch.cat(computed)[wanted.to(self._device)]

    def _extend(self, seq: Sequence, size: int, every_row: bool) -> Tensor:
        """Compute a sequence's next ``size`` tokens: its prompt at once, and output tokens one by
        one even if they are there already, since some models compute the two differently."""
        state = self._owned[seq.slot][1]
        token_ids = seq.token_ids[state.length : state.length + size]
        if state.length or size <= seq.prompt_len:
            return state.extend(token_ids, every_row)
        prompt = state.extend(token_ids[: seq.prompt_len], every_row)
        output = state.extend(token_ids[seq.prompt_len :], every_row)
        return torch.cat([prompt, output]) if every_row else output


def _num_blocks(model: FallbackModel, device: torch.device, config: EngineConfig) -> int:
    block_bytes = config.block_size * model.footprint.per_token
    longest = min(model.max_len, _PROFILED_TOKENS)
    fixed = model.footprint.fixed
    takes_memory = block_bytes > 0 or fixed > 0
    available = (
        cache_bytes(config, device, lambda: model.begin().extend([0] * longest))
        if takes_memory
        else 0
    )
    return count_blocks(available, block_bytes, model.max_len, config, fixed)
