"""What runs a step of the scheduler: the interface of every backend."""

from collections.abc import Callable
from collections.abc import Sequence as Rows
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from completions.contract.job_request import Task
from workers.engine.core.model_input import ModelInput
from workers.engine.core.plan import BatchPlan, Placed
from workers.engine.core.sequence import Sequence
from workers.engine.core.step import SchedulerOutput

Draw = Callable[[int, int, torch.device], object]
"""Draws from so many logits each of so many rows as sampling does where it takes most memory."""


TEXT_TASKS = frozenset({Task.GENERATE, Task.SCORE})
"""What every causal language model does."""


class Cache(Protocol):
    """What the scheduler needs to know of a cache."""

    @property
    def num_blocks(self) -> int: ...


class StateCopies(NamedTuple):
    """Where a runner keeps the states of sequences while it computes their drafts."""

    rows: range
    try_copy: Callable[[], object]
    """Copies the states of one sequence, to see how long it takes."""


class Drafting(NamedTuple):
    """How a runner computes drafted tokens."""

    is_exact: Callable[[Sequence], bool]
    """Whether a sequence's tokens do not depend on how many tokens a step computes."""
    try_forward: Callable[[int], None]
    """Runs a forward pass of one token each of so many sequences, to see how long it takes."""
    copies: StateCopies | None = None
    """None unless layers keep states, which a refused token would have changed."""


class Runner(Protocol):
    """Owns the cache, and turns steps into logits."""

    @property
    def cache(self) -> Cache: ...

    @property
    def tasks(self) -> frozenset[Task]:
        """What requests may ask of it."""

    @property
    def looks_ahead(self) -> bool:
        """Whether a step may be launched before the tokens of the previous one are known."""

    @property
    def shares_blocks(self) -> bool:
        """Whether a sequence may begin with blocks that another one computed."""

    @property
    def repeats_steps(self) -> bool:
        """Whether a step that failed for lack of memory can run again."""

    @property
    def cuts_prompts(self) -> bool:
        """Whether the chunks of a prompt cost what their tokens cost."""

    @property
    def saved_states(self) -> range | None:
        """Rows to save states in; None unless layers keep states beside the blocks."""

    @property
    def drafting(self) -> Drafting | None:
        """None if drafts could change what is sampled."""

    def prepare(self, output: SchedulerOutput, last_tokens: Tensor | None = None) -> ModelInput:
        """Lay out a step. Does not change the sequences.

        ``last_tokens`` [chunks], on the device, are the samples of the step in flight, if it is
        launched ahead of them.
        """

    def forward(self, model_input: ModelInput) -> Tensor:
        """Return the logits [rows, vocabulary] of ``all_sampled`` and then of ``all_scored``, in
        the model's dtype or float32; valid until the next forward."""


class PagedRunner(Runner, Protocol):
    """A runner that also computes plans, for sequences that only another process knows."""

    def follow(self, tainted: list[int], admitted: Rows[Placed], grown: Rows[Placed]) -> None:
        """Scrub blocks, and note the blocks of slots with a new sequence or with more blocks."""

    def lay_out(self, plan: BatchPlan, last_tokens: Tensor | None = None) -> ModelInput:
        """Return the tensors of a planned batch."""
