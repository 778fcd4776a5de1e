"""What a step computes. No torch."""

from dataclasses import dataclass, field

from workers.engine.core.sequence import Sequence
from workers.engine.scheduling.chunk_sizes import StepRoom
from workers.engine.scheduling.saved_states import StateSave


@dataclass(slots=True)
class SchedulerOutput:
    """One step's decision, and all that the model runner sees of the scheduler."""

    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    """The sequences of the step, each with the number of tokens it computes from
    ``num_computed`` on."""
    admitted: list[Sequence] = field(default_factory=list)
    """Sequences with a new slot and new blocks."""
    grown: list[Sequence] = field(default_factory=list)
    """Running sequences with additional blocks."""
    tainted: list[int] = field(default_factory=list)
    """Blocks to scrub before the step."""
    saves: list[StateSave] = field(default_factory=list)
    """States to save while the step computes them."""

    def place(self, sequence: Sequence, room: StepRoom) -> bool:
        """Compute as many of a sequence's tokens as the step has room for. Return whether it has
        room for any."""
        if not (size := room.take(sequence)):
            return False
        self.chunks.append((sequence, size))
        begun = min(sequence.prompt_len, sequence.num_computed + size)
        sequence.num_begun = max(sequence.num_begun, begun)
        return True
