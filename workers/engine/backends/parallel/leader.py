"""Rank 0's runner. It sends each step to the followers, which compute their parts of it."""

from torch import Tensor

from workers.engine.backends.parallel.followers import Followers
from workers.engine.core.model_input import ModelInput
from workers.engine.core.plan import StepPlan
from workers.engine.core.runner import Runner
from workers.engine.core.step import SchedulerOutput


class LeadingRunner:
    """The runner of rank 0's part, and the followers. The logits are complete: the output layer
    gathers them."""

    shares_blocks = True
    cuts_prompts = True
    repeats_steps = False
    """If a step fails here, the followers still wait for the rest of it."""
    saved_states = None
    drafting = None

    def __init__(self, own: Runner, followers: Followers) -> None:
        self._own = own
        self._followers = followers
        self.cache = own.cache
        self.looks_ahead = own.looks_ahead
        self.tasks = own.tasks

    def prepare(self, output: SchedulerOutput, last_tokens: Tensor | None = None) -> ModelInput:
        """Lay out a step, here and in the followers. Does not change the sequences."""
        batch = self._own.prepare(output, last_tokens)
        assert batch.plan is not None
        self._followers.send(
            StepPlan.make(output.tainted, output.admitted, output.grown, batch.plan)
        )
        if last_tokens is not None:
            self._followers.ranks.share(last_tokens.contiguous())
        return batch

    def forward(self, model_input: ModelInput) -> Tensor:
        """Return the logits of ``all_sampled``, then of ``all_scored``."""
        return self._own.forward(model_input)
