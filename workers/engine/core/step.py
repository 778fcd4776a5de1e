"""What a step computes, and the rows of its logits: one for each sequence that it samples, and one
for each token of its draft. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from workers.engine.core.choice import GrammarState
from workers.engine.core.sequence import Sequence


class StateSave(NamedTuple):
    """The state of a sequence after ``num_tokens``, to be copied to ``row``."""

    sequence: Sequence
    num_tokens: int
    row: int


class StateRestore(NamedTuple):
    """The state in ``row``, to be copied to ``slot``."""

    row: int
    slot: int


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
    restores: list[StateRestore] = field(default_factory=list)
    """States to copy before the step, in this order."""
    saves: list[StateSave] = field(default_factory=list)
    """States to save while the step computes them."""

    def add(self, sequence: Sequence, size: int) -> None:
        """Compute the next ``size`` tokens of a sequence."""
        self.chunks.append((sequence, size))
        begun = min(sequence.prompt_len, sequence.num_computed + size)
        sequence.num_begun = max(sequence.num_begun, begun)


class Row(NamedTuple):
    """A row of a step's logits, from which a token is sampled."""

    sequence: Sequence
    num_drafted: int
    """How many drafted tokens stand before the token."""
    grammar: GrammarState | None
    """The state before the token, if the sequence has a grammar."""


def lay_rows(sequences: Iterable[Sequence]) -> list[Row]:
    """Return the rows of a step, given the sequence of each. Rows of one sequence follow each
    other."""
    rows: list[Row] = []
    previous, index = None, 0
    for sequence in sequences:
        if sequence is not previous:
            previous, index = sequence, 0
            rows.append(Row(sequence, 0, sequence.choice.grammar))
            continue
        rows.append(Row(sequence, sequence.draft.rows[index + 1], sequence.draft.grammars[index]))
        index += 1
    return rows
