"""What a request may record from the forward passes of one sequence. No torch."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from workers.engine.core.output import ChoiceDelta


@dataclass(slots=True, eq=False)
class Record:
    """Filled step by step by the recorder, and returned with the choice's last delta.

    ``experts_from`` is the first position whose routed experts are wanted, None if none are;
    ``capacity`` the most tokens that the sequence can have.
    """

    hidden_states: bool
    experts_from: int | None
    capacity: int
    _hidden: NDArray[np.float32] | None = field(default=None, init=False)
    _experts: NDArray[np.int32] | None = field(default=None, init=False)

    def note_hidden(self, hidden: NDArray[np.float32]) -> None:
        """The vector [hidden] from which the next token is sampled."""
        self._hidden = hidden

    def note_experts(self, position: int, experts: NDArray[np.int32]) -> None:
        """Record the experts [tokens, layers, top_k] of tokens from ``position`` on. When a
        preempted sequence computes tokens again, the new values replace the old ones."""
        if self._experts is None:
            self._experts = np.zeros((self.capacity, *experts.shape[1:]), dtype=np.int32)
        self._experts[position : position + len(experts)] = experts

    def write(self, delta: ChoiceDelta, num_tokens: int) -> None:
        """Complete the last delta of a sequence of ``num_tokens``; the last of them was sampled
        and not computed."""
        if self.hidden_states and self._hidden is not None:
            delta.hidden_states = self._hidden.tolist()
        if self.experts_from is not None and self._experts is not None:
            delta.routed_experts = self._experts[self.experts_from : num_tokens - 1].copy()
